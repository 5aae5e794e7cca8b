"""Why a run does not get better, and the one thing to change first: rules over what it has done."""

# Importing a family registers its rules; this is the order in which they speak and are documented. The judgement of a change
# comes last, since it asks what the others have said.
from sparring.diagnosis import system, histories, clients, optimizer, rewards, sampling  # noqa: F401, I001
from sparring.diagnosis import formats, episodes, stall, unexplained, lineage  # noqa: F401
from sparring.diagnosis.diagnose import Diagnosis, Silenced, diagnosed
from sparring.diagnosis.observed import Lineage, Observed, Progress
from sparring.diagnosis.reading import diagnose, observe
from sparring.diagnosis.registry import SYMPTOMS, Symptom, symptom

__all__ = [
    "SYMPTOMS", "Diagnosis", "Lineage", "Observed", "Progress", "Silenced", "Symptom", "diagnose", "diagnosed", "observe",
    "symptom",
]  # fmt: skip
