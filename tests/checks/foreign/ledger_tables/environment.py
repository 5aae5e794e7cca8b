"""Accounts in a table of pandas that is read once, as tools of other benchmarks keep them. It has no scripted expert."""

from datetime import datetime
from pathlib import Path

import pandas as pd

from sparring.environments import Environment, tool
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

ACCOUNTS = pd.read_csv(Path(__file__).with_name("accounts.csv"))
OPENED = pd.to_datetime(ACCOUNTS["opened"])


class Accounts(Environment):
    def row(self, business_id: str):
        found = ACCOUNTS[ACCOUNTS["business_id"] == business_id]
        if found.empty:
            raise ValueError(f"business {business_id} not found")
        return found.iloc[0]

    @tool
    def calculate_exposure(self, business_id: str) -> dict[str, float | str]:
        """Exposure of a business, and the code of its sector."""
        row = self.row(business_id)
        return {"exposure": float(row["loans"] - row["deposits"]), "sector_code": str(row["sector"])}

    @tool
    def sector_limit(self, sector_code: str, currency: str) -> dict[str, float]:
        """The largest exposure that a sector may have, in a currency (EUR or USD)."""
        if currency not in ("EUR", "USD"):
            raise ValueError(f"unknown currency {currency}")
        found = ACCOUNTS[ACCOUNTS["sector"] == sector_code]
        if found.empty:
            raise ValueError("unknown sector")
        limit = float(found["deposits"].mean())
        return {"limit": round(limit * (1.1 if currency == "USD" else 1.0), 2)}

    @tool
    def age_in_months(self, business_id: str, as_of: str) -> int:
        """Age of a business at a date (YYYY-MM-DD)."""
        at = datetime.strptime(as_of, "%Y-%m-%d")
        opened = OPENED[self.row(business_id).name]
        return (at.year - opened.year) * 12 + at.month - opened.month


reward, scorer = json_fields("final_output"), json_exact("final_output")


def tasks(rows) -> list[Task]:
    made = []
    for _, row in rows.iterrows():
        business = row["business_id"]
        prompt = (
            "Decide on the loan of a business. Get its exposure, then the limit of its sector in its currency.\n"
            'Answer with <final_output>{"decision": ""}</final_output>: approve or refuse.\n\n'
            f"| field | value |\n|---|---|\n| business_id | {business} |\n| currency | {row['currency']} |\n\n"
            f"as_of: 2025-03-{row.name % 27 + 1:02d}\n"
        )
        exposure = row["loans"] - row["deposits"]
        limit = ACCOUNTS[ACCOUNTS["sector"] == row["sector"]]["deposits"].mean() * (
            1.1 if row["currency"] == "USD" else 1.0
        )
        decision = "approve" if exposure <= limit else "refuse"
        made.append(
            Task(
                id=business, messages=({"role": "user", "content": prompt},), fields={"answer": {"decision": decision}}
            )
        )
    return made


def train_tasks() -> list[Task]:
    return tasks(ACCOUNTS.iloc[:24])


def validation_tasks() -> list[Task]:
    return tasks(ACCOUNTS.iloc[24:32])


def held_out_tasks() -> list[Task]:
    return tasks(ACCOUNTS.iloc[32:40])
