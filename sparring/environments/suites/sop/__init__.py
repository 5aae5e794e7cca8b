"""Twelve generated business domains, each with a procedure, tools, tasks, a scripted expert, a reward and a scorer.

from sparring.environments.suites import sop

domain = sop.DOMAINS["aircraft_inspection"]
tasks = domain.train_tasks(64, seed=0, distractors=2, missing=0.2, longer=1)
conversation = record_demonstration(domain.desk, tasks[0])
"""

from collections.abc import Mapping
from types import MappingProxyType

from sparring.environments.suites.sop import (
    aircraft_inspection,
    content_flagging,
    customer_service,
    dangerous_goods,
    email_intent,
    know_your_business,
    media_review,
    order_fulfilment,
    patient_intake,
    referral_abuse,
    traffic_spoofing,
    warehouse_inspection,
)
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    Difficulty,
    ReplayDesk,
    SopDesk,
    SopDomain,
    distractor,
    final_output,
    replies,
    worked,
)
from sparring.environments.suites.sop.entities import SPLITS, Draw, Pool, Split, codes

DOMAINS: Mapping[str, SopDomain] = MappingProxyType(
    {
        module.DOMAIN.name: module.DOMAIN
        for module in (
            aircraft_inspection,
            content_flagging,
            customer_service,
            dangerous_goods,
            email_intent,
            know_your_business,
            media_review,
            order_fulfilment,
            patient_intake,
            referral_abuse,
            traffic_spoofing,
            warehouse_inspection,
        )
    }
)

__all__ = [
    "DOMAINS",
    "SPLITS",
    "Case",
    "Clause",
    "Difficulty",
    "Draw",
    "Pool",
    "ReplayDesk",
    "SopDesk",
    "SopDomain",
    "Split",
    "codes",
    "distractor",
    "final_output",
    "replies",
    "worked",
]  # fmt: skip
