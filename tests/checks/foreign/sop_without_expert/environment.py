"""The twelve domains of the suite as a user brings them who has written no scripted expert."""

from sparring.environments import Environment
from sparring.environments.suites import sop

for name, domain in sop.DOMAINS.items():
    globals()[name] = type(name, (domain.desk,), {"demonstrate": Environment.demonstrate, "__module__": __name__})
