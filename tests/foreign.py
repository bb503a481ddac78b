"""Nets that are not of the zoo, as people write them: what the generator of axes tables is tried on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Inverted(nn.Module):
    """A block of MobileNetV2: wide, depthwise, narrow, and added to what came in."""

    def __init__(self, before: int, wide: int, after: int, stride: int) -> None:
        super().__init__()
        self.same = stride == 1 and before == after
        self.body = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


class MobileNet(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6())
        self.blocks = nn.Sequential(Inverted(6, 12, 8, 1), Inverted(8, 16, 8, 1), Inverted(8, 16, 10, 2))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(10, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        return self.classifier(x.flatten(1))


class DenseLayer(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    """All layers of a block see all before them."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.block1 = nn.Sequential(DenseLayer(6, 4), DenseLayer(10, 4))
        self.between = nn.Sequential(nn.BatchNorm2d(14), nn.ReLU(), nn.Conv2d(14, 8, 1), nn.AvgPool2d(2))
        self.block2 = nn.Sequential(DenseLayer(8, 4), DenseLayer(12, 4))
        self.norm = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.between(self.block1(self.stem(x))))
        x = self.norm(x).relu()
        return self.fc(torch.flatten(x, 1))


class Squeeze(nn.Module):
    """Squeeze and excitation: the channels are weighed by what all of them say."""

    def __init__(self, channels: int, less: int) -> None:
        super().__init__()
        self.less = nn.Linear(channels, less)
        self.more = nn.Linear(less, channels)

    def forward(self, x: Tensor) -> Tensor:
        s = x.mean((2, 3))
        s = torch.sigmoid(self.more(F.relu(self.less(s))))
        return x * s[:, :, None, None]


class SENet(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 8)
        self.se1 = Squeeze(8, 4)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.se2 = Squeeze(8, 4)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.se1(F.relu(self.norm1(self.conv1(x))))
        x = x + self.se2(F.relu(self.conv2(x)))
        return self.fc(x.amax((2, 3)))


class UNet(nn.Module):
    """Down, up, and across; it says what each pixel is, and here the mean of that."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(6, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU())
        self.bottom = nn.Sequential(nn.Conv2d(10, 12, 3, padding=1), nn.ReLU())
        self.up2 = nn.ConvTranspose2d(12, 10, 2, stride=2)
        self.fuse2 = nn.Sequential(nn.Conv2d(20, 10, 3, padding=1), nn.ReLU())
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.fuse1 = nn.Sequential(nn.Conv2d(16, 6, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(6, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.fuse2(torch.cat((self.up2(c), b), dim=1))
        a = self.fuse1(torch.cat((self.up1(b), a), dim=1))
        return self.out(a).mean((2, 3))


class TextGRU(nn.Module):
    def __init__(self, vocabulary: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 6)
        self.gru = nn.GRU(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(10, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(self.words(x))
        return self.out(states.mean(1))


class Inception(nn.Module):
    """Three filters of different length and a pooled one beside each other, for signals."""

    def __init__(self, before: int, each: int) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(before, each, 1, bias=False)
        self.branches = nn.ModuleList(nn.Conv1d(each, each, k, padding=k // 2, bias=False) for k in (7, 5, 3))
        self.pooled = nn.Conv1d(before, each, 1, bias=False)
        self.norm = nn.BatchNorm1d(4 * each)

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.bottleneck(x)
        parts = [branch(narrow) for branch in self.branches]
        parts.append(self.pooled(F.max_pool1d(x, 3, stride=1, padding=1)))
        return F.relu(self.norm(torch.cat(parts, 1)))


class InceptionTime(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.block1 = Inception(3, 4)
        self.block2 = Inception(16, 4)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block2(self.block1(x)).mean(-1))


class TwoTower(nn.Module):
    """The first half of a sample goes up one tower, the second another; what they say is joined."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6))
        self.mix = nn.Linear(12, 8)
        self.fc = nn.Linear(9, classes)

    def forward(self, x: Tensor) -> Tensor:
        a, b = (tower(part) for tower, part in zip((self.left, self.right), x.chunk(2, 1), strict=True))
        alike = (a * b).sum(1, keepdim=True)
        both = F.relu(self.mix(torch.cat([a, b], 1)))
        return self.fc(torch.cat([both, alike], 1))


class Shared(nn.Module):
    """One layer used three times over, and a decoder that is the encoder's transpose."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 6, bias=False)
        self.step = nn.Linear(6, 6)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encode(x)
        for _ in range(3):
            h = h + torch.tanh(self.step(h))
        back = F.linear(h, self.encode.weight.t())
        return self.fc(back.relu())


class BakedIn(nn.Module):
    """Its reshape says how many channels there are: what it makes can never be cut."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 4 * 4, 10)
        self.fc = nn.Linear(10, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = self.conv2(x)
        x = x.view(-1, 8 * 4 * 4)
        return self.fc(F.relu(self.hidden(x)))


class Grouped(nn.Module):
    """A block of ResNeXt: a convolution of four groups."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, groups=4)
        self.norm2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 6, 1)
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm2(self.conv2(F.relu(self.conv1(x)))))
        return self.fc(self.conv3(x).mean((-2, -1)))
