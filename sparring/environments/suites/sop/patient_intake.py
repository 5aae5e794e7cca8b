"""Patient intake: fill in one sheet from four records that disagree.

For each field, the newest record that states it takes precedence, with one exception: an allergy is never withdrawn.
The doctor in the newest record may be away, which only the staff list shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparring.environments.demonstrations import tool_call
from sparring.environments.replayed_tools import replayed
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    ReplayDesk,
    Script,
    SopDomain,
    distractor,
    final_output,
    replies,
)
from sparring.environments.suites.sop.entities import PEOPLE, Draw, Pool, codes
from sparring.types import Json

PATIENTS, INSURERS = Pool(codes("PQ", 100, 299)), Pool(codes("HJ"))
SOURCES = ("form", "chart", "referral", "pharmacy")
ALLERGIES = ("latex", "nuts", "eggs", "iodine", "wasps")


class Desk(ReplayDesk):
    """Tools for the records of a patient, the staff list, and the insurers."""

    @replayed
    def form(self, patient: str) -> Json:
        """what the patient wrote"""

    @replayed
    def chart(self, patient: str) -> Json:
        """what the ward wrote"""

    @replayed
    def referral(self, patient: str) -> Json:
        """what the other practice wrote"""

    @replayed
    def pharmacy(self, patient: str) -> Json:
        """what the pharmacy wrote"""

    @replayed
    def staff(self, doctor: str) -> Json:
        """who stands in for a doctor; null: nobody"""

    @replayed
    def cover(self, insurer: str) -> Json:
        """whether the insurer still pays"""

    @distractor
    @replayed
    def bed(self, patient: str) -> Json:
        """bed of a patient"""

    @distractor
    @replayed
    def phone(self, doctor: str) -> Json:
        """extension of a doctor"""

    @distractor
    @replayed
    def office(self, insurer: str) -> Json:
        """town of an insurer"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        records = []
        for source in SOURCES:
            records.append((yield tool_call(source, patient=given["patient"])))
        if longer >= 1 and "draft" not in skipped:
            records = [record for record in records if record["date"] <= given["date"]]
        if "newest" not in skipped:
            records.sort(key=lambda record: record["date"], reverse=True)
        stated = {
            field: [record[field] for record in records if record[field] is not None]
            for field in ("doctor", "allergy", "insurer")
        }
        unstated = "none" if "missing" in skipped else "ask"
        doctor, insurer = (stated[field][0] if stated[field] else unstated for field in ("doctor", "insurer"))
        allergies = stated["allergy"]
        if "allergy" not in skipped:
            allergies = [allergy for allergy in allergies if allergy != "none"]
        if stated["doctor"] and "staff" not in skipped:
            doctor = (yield tool_call("staff", doctor=doctor))["stand_in"] or doctor
        if longer >= 2 and stated["insurer"] and "cover" not in skipped:
            insurer = insurer if (yield tool_call("cover", insurer=insurer))["pays"] else "self"
        yield final_output(doctor=doctor, allergy=allergies[0] if allergies else "none", insurer=insurer)


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw four records from different days, each of which states some of the fields."""
    patient, stand_in = draw.entity(PATIENTS), draw.entity(PEOPLE)
    days = sorted(draw.rng.sample(range(1, 29), 5))
    month = draw.between(1, 12)
    today = days[4]
    order = draw.rng.sample(range(4), 4)
    records: list[dict[str, Json]] = [
        {"date": f"{month:02}-{days[place]:02}", "doctor": None, "allergy": None, "insurer": None} for place in order
    ]
    is_drafted = longer >= 1 and draw.pick((True, False))
    if is_drafted:
        today = days[3] - 1 if days[3] - 1 > days[2] else days[2]
    # The records are sorted from old to new. A draft states nothing that counts.
    known = sorted(records, key=lambda record: record["date"])[: 3 if is_drafted else 4]
    checks = set[str]()
    answer: dict[str, Json] = {}
    unstated = draw.pick(("doctor", "insurer")) if is_missing else None
    for field, pool in (("doctor", PEOPLE), ("insurer", INSURERS)):
        stating = [] if field == unstated else draw.rng.sample(range(len(known)), draw.between(2, 3))
        for place in stating:
            known[place][field] = draw.entity(pool)
        answer[field] = known[max(stating)][field] if stating else "ask"
        first = next((record[field] for record in records if record[field]), None)
        if stating and first != answer[field]:
            checks.add("newest")
        if is_drafted and stating:
            max(records, key=lambda record: record["date"])[field] = draw.entity(pool)
            checks.add("draft")
    if is_missing:
        checks.add("missing")
    older, newer = sorted(draw.rng.sample(range(len(known)), 2))
    answer["allergy"] = (
        draw.pick(("none", "none", *ALLERGIES[:3])) if draw.pick((True, False)) else draw.pick(ALLERGIES)
    )
    known[older]["allergy"] = answer["allergy"]
    if answer["allergy"] != "none" and draw.pick((True, True, False)):
        known[newer]["allergy"] = "none"
        checks.add("allergy")
    doctors = [record["doctor"] for record in records if record["doctor"]]
    insurers = [record["insurer"] for record in records if record["insurer"]]
    away, ended = answer["doctor"], answer["insurer"]
    is_away = away != "ask" and draw.pick((True, False))
    if is_away:
        answer["doctor"] = stand_in
        checks.add("staff")
    is_ended = longer >= 2 and ended != "ask" and draw.pick((True, False, False))
    if is_ended:
        answer["insurer"] = "self"
        checks.add("cover")
    date = f"{month:02}-{today:02}"
    return Case(
        request=f"Patient {patient}" + (f", visit on {date}." if longer >= 1 else "."),
        given={"patient": patient} | ({"date": date} if longer >= 1 else {}),
        state=[
            *(replies(source, record, patient=patient) for source, record in zip(SOURCES, records, strict=True)),
            *(
                replies("staff", {"stand_in": stand_in if is_away and name == away else None}, doctor=name)
                for name in doctors
            ),
            *(replies("phone", {"extension": draw.between(200, 899)}, doctor=name) for name in doctors),
            *(replies("cover", {"pays": not (is_ended and code == ended)}, insurer=code) for code in insurers),
            *(replies("office", {"town": draw.pick(("Aden", "Brill", "Cray"))}, insurer=code) for code in insurers),
            replies("bed", {"bed": draw.between(1, 80)}, patient=patient),
        ],
        answer=answer,
        checks=tuple(sorted(checks)),
    )


DOMAIN = SopDomain(
    name="patient_intake",
    role="You fill in the intake sheet of patients.",
    idea="field by field the newest record that states it; an allergy is never withdrawn; stand-ins in a second look-up",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Read form, chart, referral and pharmacy. They have dates, month-day; null states nothing.",
        "For doctor and insurer take the newest record that states it.",
        "Allergy: the newest that is not none; a later none does not undo it. None, if there is no other.",
        "Ask staff about that doctor. If there is a stand-in, put the stand-in.",
    ),
    if_missing="A doctor or insurer that no record states: put ask.",
    clauses=(
        Clause(text="Records from after the visit are drafts: ignore them."),
        Clause(text="If the insurer no longer pays (cover): put self.", tools=("cover",)),
    ),
    answer_form={"doctor": "", "allergy": "", "insurer": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
