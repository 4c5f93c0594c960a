package daemon

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/config"
	"gatehouse/shared/must"
)

// A port that is taken is an error, also for a daemon that is being stopped: there is no server to stop then.
func TestOpenAPI_portTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer taken.Close()
	stopping, stop := context.WithCancel(t.Context())
	stop()
	for name, ctx := range map[string]context.Context{"start": t.Context(), "stop": stopping} {
		d := new(daemon)
		c := new(config.Config)
		c.API.Host, c.API.Port = "127.0.0.1", taken.Addr().(*net.TCPAddr).Port
		d.config.Store(c)
		server, address, err := d.openAPI(ctx, new(sync.WaitGroup), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "AUTH_API_HOST, AUTH_API_PORT or PORT: ") || server != nil ||
			address != "" {
			t.Errorf("%s: %v, %q, %v, want an error that names the settings of the address", name, server, address, err)
		}
	}
}

// The watchdog gets no sign of life where the listener's goroutines hang: connections are open, and nothing answers.
func TestAlive_hangs(t *testing.T) {
	t.Parallel()
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer hung.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := alive(ctx, hung.Addr().String()); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("%v, want no answer", err)
	}
}
