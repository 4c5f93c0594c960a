package account_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// before is a connection to PostgreSQL that calls do before a text goes to the server for the first time.
type before struct {
	net.Conn
	text string
	do   func()
}

func (c before) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.text)) {
		c.do()
	}
	return c.Conn.Write(b)
}

// A ban that is lifted after the user was read for the hook of access tokens: no token without the hook's claims.
func TestRefresh_banLifted(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	admin := openOn(t, pool(t, url))
	g := admin.confirmed("mia@example.org")
	var lift sync.Once
	db, err := store.Open(t.Context(), store.Options{URL: url, Settings: store.Settings{MaxConns: 1},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return before{c, "secret_hash = $2 for no key update", func() {
				lift.Do(func() { admin.ban(g.User, "none") })
			}}, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	asked := 0
	h := openOn(t, db, func(s *flow.Settings) {
		s.Hooks.Claims = func(_ context.Context, q flow.ClaimsQuestion) (json.RawMessage, error) {
			asked++
			return q.Claims, nil
		}
	})
	admin.ban(g.User, "1h")
	_, err = h.refresh(g.RefreshToken)
	refused(t, err, "unexpected_failure: The service is temporarily unavailable, please retry after a moment.")
	if asked != 0 {
		t.Errorf("the hook was asked %d times", asked)
	}
	h.pass(time.Second)
	again, err := h.refresh(g.RefreshToken) // the client repeats it, and loses nothing
	accepted(t, err)
	if asked != 1 || again.AccessToken == "" {
		t.Errorf("the hook was asked %d times, for %q", asked, again.AccessToken)
	}
}
