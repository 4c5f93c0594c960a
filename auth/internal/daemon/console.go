package daemon

import (
	"context"
	"fmt"
	"sync"

	"gatehouse/auth/internal/console"
	"gatehouse/shared/httpx"
	"gatehouse/shared/nonblock"
)

// openConsole serves the admin console and returns its URL; "" if there is no console.
func (d *daemon) openConsole(ctx context.Context, wg *sync.WaitGroup, failed chan<- error) (string, error) {
	c := d.config.Load().Console
	if c.Addr == "" {
		return "", nil
	}
	l, err := httpx.Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return "", fmt.Errorf("AUTH_CONSOLE_ADDR: %w", err)
	}
	u, loopback, err := console.ExternalURL(c.ExternalURL, l.Addr())
	if err != nil {
		l.Close()
		return "", fmt.Errorf("AUTH_CONSOLE_EXTERNAL_URL: %w", err)
	}
	s := console.New(console.Options{Core: d.core, API: d.api, Root: d.root, Keys: d.keeper.List, URL: u,
		Loopback: loopback, Now: d.clock.Now})
	wg.Go(func() {
		if err := s.Serve(ctx, nonblock.Listener{Listener: l}, d.log.Logger); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	return u.String(), nil
}
