"""A small vision model on scikit-learn's digits: 1,797 images of 8 × 8 pixels, ten classes.

python examples/train_torch.py
hwal train examples/train_torch.py --epochs 20
hwal train -n 2 examples/train_torch.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import hwal


def digits() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))
    return random_split(data, [1500, 297], generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    # GroupNorm, not BatchNorm: a sample's output must not depend on which others share its batch. GELU, not ReLU: where a
    # device rounds another way, a ReLU turns the 1e-8 between just off and just on into a gradient that is there or is not.
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.GELU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.GroupNorm(8, 64), nn.GELU(),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    train_set, test_set = digits()
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)  # the global batch, at any number of processes
    test_loader = DataLoader(test_set, batch_size=256)

    with hwal.start() as rt:
        with rt.scope():
            model = network()
            optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train_loader))
        model, optimizer, scheduler = rt.prepare(model, optimizer, scheduler)

        for epoch in rt.epochs(args.epochs):
            model.train()
            for images, labels in rt.feed(train_loader):
                with rt.autocast():
                    loss = cross_entropy(model(images), labels)
                rt.backward(loss)
                if rt.step(optimizer):
                    scheduler.step()

            model.eval()
            hits = count = 0
            with torch.no_grad():
                for images, labels in rt.feed(test_loader, train=False):
                    with rt.autocast():
                        hits += (model(images).argmax(1) == labels).sum()
                    count += len(labels)
            accuracy = rt.mean(hits, count)
            rt.log(accuracy=accuracy)
            rt.say(f"epoch {epoch}: accuracy {accuracy:.3f}")
            rt.save()


if __name__ == "__main__":
    main()
