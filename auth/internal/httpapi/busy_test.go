package httpapi

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// occupied are hash workers that always have a long job at work and a full queue.
func occupied(t *testing.T) *password.Workers {
	t.Helper()
	params, err := password.ParseParams("bcrypt:4")
	must.Succeed(t, err)
	w := password.NewWorkers(password.Options{Workers: 1, Queue: 1, Params: params})
	ctx, cancel := context.WithCancel(t.Context())
	var jobs sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		jobs.Wait()
		w.Close()
	})
	short, err := w.Hash(ctx, "x")
	must.Succeed(t, err)
	long := strings.Replace(short, "$04$", "$12$", 1)
	for range 4 { // the queue is full again as soon as a job is done
		jobs.Go(func() {
			for ctx.Err() == nil {
				w.Check(ctx, long, "x")
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	await.True(t, "the workers are busy", func() bool { return w.Stats().Running+w.Stats().Waiting == 2 })
	return w
}

// A request that finds the queue of the hash workers full has a code of its own.
func TestOverCapacity(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	a.do("POST /invite", map[string]any{"email": "new@example.org"}, a.service()).is(200, "*")
	link := a.newest("new@example.org").Hash
	codec := token.NewRefreshCodec(a.root.Keys(secret.Refresh))
	core := flow.New(flow.Options{DB: a.db, Keys: a.keys, Refresh: codec, Root: a.root, Passwords: occupied(t),
		Now: a.clock}, a.account)
	server, err := New(Options{Core: core, Now: a.clock}, a.set)
	must.Succeed(t, err)
	a.http.Close()
	a.http = httptest.NewServer(server)
	defer a.http.Close()
	f := func(what string, body map[string]any, headers ...header) {
		t.Helper()
		body["password"] = "open sesame 2"
		got := a.do(what, body, headers...).refused(503, "over_capacity", "*")
		if got.Header.Get("Retry-After") == "" || got.Header.Get("X-Sb-Error-Code") != "over_capacity" {
			t.Errorf("%s: %v", what, got.Header)
		}
	}
	f("POST /token?grant_type=password", map[string]any{"email": "mia@example.org"})
	f("POST /signup", map[string]any{"email": "tom@example.org"})
	f("PUT /user", map[string]any{}, bearer(g.AccessToken))
	f("POST /verify", map[string]any{"type": "invite", "token_hash": link})
	f("POST /admin/users", map[string]any{"email": "ann@example.org"}, a.service())
	f("PUT /admin/users/"+g.User.ID, map[string]any{}, a.service())
}
