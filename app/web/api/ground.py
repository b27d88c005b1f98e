"""What the routes of the REST API share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.api_ports import PastQuotas, Resources
from app.audit_ports import Lines, Reporter
from app.core.engine import Engine
from app.core.model import Millis, TenantName
from app.core.telling.outlook import Outlook
from app.core.telling.views import Bulletin
from app.foresight_ports import Forecasts, NoForecasts, Simulations
from app.ports import RunReader
from app.web.access import Access
from app.web.problems import Refused
from app.web.view import View


@dataclass(frozen=True, slots=True)
class Ground:
    """What routes answer from. `engine` sees all and decides nothing; `age` is its, in ms.

    `bulletin` is the last that a leader published, None before the first.
    """

    access: Access
    engine: Engine
    seen_whole: Callable[[], bool]
    age: Callable[[], int]
    now: Callable[[], Millis]
    view: View
    runs: RunReader
    chain: Lines
    resources: Resources
    reporter: Reporter
    forecasts: Forecasts = field(default_factory=NoForecasts)
    past: PastQuotas | None = None
    bulletin: Callable[[], Bulletin | None] = lambda: None
    simulations: Simulations | None = None

    @property
    def outlook(self) -> Outlook:
        """How things stand."""
        return self.engine.outlook

    def need_sight(self) -> None:
        """Raise Refused (503) until the cluster was seen whole."""
        if not self.seen_whole():
            raise Refused(503, "Fairgate has just started and does not know the cluster yet.")

    def need_tenant(self, name: str) -> TenantName:
        """Return the name of a tenant that is there; raise Refused (404) if there is none."""
        self.need_sight()
        if not self.outlook.exists(TenantName(name)):
            raise Refused(404, f"There is no tenant {name}; GET /v1/tenants lists them.")
        return TenantName(name)
