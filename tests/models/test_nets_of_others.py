"""Networks of other packages train as backbones; none of their weights is downloaded."""

import pytest
import torch
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import make_trainer

pytestmark = pytest.mark.slow
Y = (torch.arange(48) % 4 == 0).long()


def timm():
    models = pytest.importorskip("timm")
    x = torch.rand(48, 3, 32, 32)
    return models.create_model("test_efficientnet", pretrained=False, num_classes=1), list(zip(x, Y, strict=True)), None


def monai():
    nets = pytest.importorskip("monai.networks.nets")
    data = pytest.importorskip("monai.data")
    net = nets.DenseNet(3, 1, 2, init_features=4, growth_rate=2, block_config=(2,), bn_size=2)  # two logits
    items = [{"image": torch.rand(1, 8, 8, 8), "label": int(label)} for label in Y]
    return net, data.Dataset(items, lambda item: {**item, "image": 2 * item["image"]}), None


def transformers():
    hugging_face = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = hugging_face.ViTConfig(image_size=16, patch_size=8, num_labels=1, **sizes)
    items = [{"pixel_values": torch.rand(3, 16, 16), "labels": label} for label in Y]
    return hugging_face.ViTForImageClassification(config), items, None


def chemprop():
    chemistry = pytest.importorskip("chemprop")
    points = [chemistry.data.MoleculeDatapoint.from_smi("C" * (2 + k % 5), [float(y)]) for k, y in enumerate(Y)]
    molecules = chemistry.data.MoleculeDataset(points)

    class Logits(nn.Module):
        """The predictor of a classifier ends in a sigmoid, which `forward` of the whole network applies."""

        def __init__(self):
            super().__init__()
            layers = chemistry.nn.BondMessagePassing(d_h=8), chemistry.nn.MeanAggregation()
            self.net = chemistry.models.MPNN(*layers, chemistry.nn.BinaryClassificationFFN(input_dim=8, hidden_dim=8))

        def forward(self, molecules):
            return self.net.predictor.train_step(self.net.fingerprint(molecules))

    def collate(items):
        batch = chemistry.data.collate_batch([datum for datum, _ in items])
        return batch.bmg, torch.stack([label for _, label in items])

    return Logits(), list(zip(molecules, Y, strict=True)), collate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [timm, monai, transformers, chemprop])
def test_it_trains(make):
    torch.manual_seed(0)
    net, items, collate = make()
    before = [p.detach().clone() for p in net.parameters()]
    data = PosNegDataModule(items, val_dataset=items, num_pos=4, num_neg=8, batch_size=24, collate_fn=collate)
    module = TPAUCModule(net, STACO(0.5, 0.5))
    trainer = make_trainer(precision="32-true", max_steps=3, max_epochs=-1)
    trainer.fit(module, data)
    assert any(not torch.equal(p, q) for p, q in zip(before, net.parameters(), strict=True))
    assert 0.0 <= float(trainer.callback_metrics["val/auroc"]) <= 1.0
