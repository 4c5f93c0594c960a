package daemon

import (
	"context"
	"net/http"
	"time"

	"gatehouse/shared/httpx"
)

// drain stops taking work in the sequence that balancers need: unready first, then a pause for them to notice, then
// no new connections and a bounded wait for the requests in flight. The outbox gives back unsent messages when the
// background ends.
func (d *daemon) drain(server *http.Server) {
	began, c := time.Now(), d.config.Load().API
	d.draining.Store(true)
	d.log.Info("stopping", "delay", c.DrainDelay, "timeout", c.DrainTimeout)
	time.Sleep(c.DrainDelay)
	ctx, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	if err := httpx.Stop(ctx, server); err != nil {
		d.log.Warn("requests were cut: they took longer than AUTH_DRAIN_TIMEOUT", "timeout", c.DrainTimeout)
	}
	d.log.Info("stopped", "took", time.Since(began))
}
