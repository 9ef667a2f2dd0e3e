#!/usr/bin/env bash
# AdrenalMNIST3D with ResNet18, cross-entropy beside STACO2, within eight minutes of one GPU. What has finished by then is
# reported; the same command goes on from there. Further options are those of reproduce.py:
#
#   examples/resnet18.sh DATA_ROOT [--results DIR] [--download] [--length EPOCHS] ...
set -euo pipefail

root=${1:?the folder of adrenalmnist3d.npz, and options of examples/reproduce.py}
shift
words=(--experiment adrenalmnist3d --data-root "$root" --methods CE STACO2 --accelerator gpu --length 15 --budget 3)
words+=(--one-search "$@")
# Lightning takes a signal for the end of a batch, so it may take a while; 124 and 137: it ran out of time
timeout --kill-after 20 "${SECONDS_OF_GPU:-440}" python examples/reproduce.py "${words[@]}" || [[ $? =~ ^1(24|37)$ ]]
python examples/reproduce.py "${words[@]}" --only-report
