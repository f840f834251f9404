"""Writes the table of refused features into docs/compatibility.md and its Chinese page.

.venv/bin/python tools/unsupported_features.py
"""

from __future__ import annotations

from pathlib import Path

from gantrymq.protocol.unsupported_features import UNSUPPORTED_FEATURES, UnsupportedFeature

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ROOT / "docs" / "compatibility.md", ROOT / "docs" / "zh" / "compatibility.md"
PAGES = (ENGLISH, CHINESE)
BEGIN, END = "<!-- unsupported features -->\n", "<!-- end of unsupported features -->\n"
#: The Chinese name of each feature, and what to use instead.
_CHINESE = {
    "static topics": ("静态主题", "在更多 Broker 上创建该主题，用 `gantry admin updateTopic -w 0` 排空一个 Broker"),
    "batch consume queues": ("批量消费队列", "使用 `queue.type=SimpleCQ`；生产者可以向任何主题发送批量消息"),
    "wildcard subscriptions of lite topics": ("Lite 主题的通配符订阅", "分别订阅每个 Lite 主题，或发送到普通主题"),
    "stores in RocksDB": ("RocksDB 存储", "使用默认存储，两个项目的 Broker 都能读取它的文件"),
    "other timer engines": ("其他定时引擎", "Broker 只有时间轮一种定时引擎"),
    "commit logs of DLedger": ("DLedger 的 CommitLog", "用 Controller 复制"),
    "limits for reads of cold data": (
        "冷数据读取的流控",
        "用 `rocketmq-store` 读取旧消息：直接读文件",
    ),
    "broker containers": ("Broker 容器", "`gantry broker --processes N` 运行多个 Broker，每个 Broker 一个进程"),
    "monitoring commands": ("监控命令", "`gantry doctor` 检查一次集群，告警使用指标"),
}


def table(page: Path) -> str:
    """Returns the table of a page, in the language of the page."""
    heads = ("功能", "请求方式", "替代办法") if page == CHINESE else ("feature", "requested by", "instead")
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|"]
    for feature in UNSUPPORTED_FEATURES:
        name, instead = _CHINESE[feature.name] if page == CHINESE else (feature.name, feature.instead)
        rows.append(f"| {name} | {_requested_by(feature)} | {instead} |")
    return "".join(f"{row}\n" for row in rows)


def _requested_by(feature: UnsupportedFeature) -> str:
    settings = [f"`{key}={value}`" if value.isalnum() else f"`{key}`" for key, value in feature.settings.items()]
    names = [*feature.attributes, *feature.commands]
    return ", ".join([*_ranges(feature.requests), *settings, *(f"`{name}`" for name in names)])


def _ranges(codes: tuple[int, ...]) -> list[str]:
    """Returns 7, 8 and 9 as "7-9"."""
    found: list[list[int]] = []
    for code in sorted(codes):
        if found and found[-1][-1] == code - 1:
            found[-1].append(code)
        else:
            found.append([code])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]


def rendered(page: Path) -> str:
    """Returns the text of a page with the present table."""
    before, _, rest = page.read_text().partition(BEGIN)
    return before + BEGIN + table(page) + END + rest.partition(END)[2]


def main() -> None:
    for page in PAGES:
        page.write_text(rendered(page))


if __name__ == "__main__":
    main()
