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
timeout "${SECONDS_OF_GPU:-450}" python examples/reproduce.py "${words[@]}" || [ $? -eq 124 ]
python examples/reproduce.py "${words[@]}" --only-report
