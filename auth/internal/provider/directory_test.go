package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/await"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

// clock is a time that tests move.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ns.Store(time.Now().UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func directoryAt(t *testing.T, c *clock) *directory {
	t.Helper()
	clients := outbound.New(outbound.Options{})
	t.Cleanup(clients.CloseIdle)
	return newDirectory(clients, Settings{Now: c.now}.withDefaults())
}

// asked counts the fetches of both parts.
func asked(f *fakeidp.Server, want string, t *testing.T) {
	t.Helper()
	got := fmt.Sprintf("%d documents, %d key sets", len(f.Requests("oidc", "/.well-known/")),
		len(f.Requests("oidc", "/keys")))
	if got != want {
		t.Errorf("asked for %s, want %s", got, want)
	}
}

func TestDirectoryCaches(t *testing.T) {
	t.Parallel()
	f := start(t)
	c := newClock()
	d := directoryAt(t, c)
	us := trust{issuer: f.Base("oidc")}
	text := f.IDToken("oidc", fakeidp.Ann, map[string]any{"exp": time.Now().Add(1000 * time.Hour).Unix()})
	check := func() error {
		_, err := d.verified(t.Context(), us, text)
		return err
	}
	await.Together(50, func(int) {
		if err := check(); err != nil {
			t.Error(err)
		}
	})
	asked(f, "1 documents, 1 key sets", t)
	c.advance(59 * time.Minute)
	if err := check(); err != nil {
		t.Error(err)
	}
	asked(f, "1 documents, 1 key sets", t)
	c.advance(2 * time.Minute)
	if err := check(); err != nil {
		t.Error(err)
	}
	asked(f, "2 documents, 2 key sets", t)

	// What can't be renewed stays in use, and is not fetched all the time.
	c.advance(2 * time.Hour)
	f.Behave("oidc", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"discovery": fakeidp.ServerError,
		"keys": fakeidp.NotJSON}})
	for range 5 {
		if err := check(); err != nil {
			t.Error(err)
		}
	}
	asked(f, "3 documents, 3 key sets", t)
	c.advance(failurePause + time.Second)
	if err := check(); err != nil {
		t.Error(err)
	}
	asked(f, "4 documents, 4 key sets", t)
	c.advance(failurePause + time.Second)
	f.Behave("oidc", fakeidp.Behaviour{})
	for range 3 {
		if err := check(); err != nil {
			t.Error(err)
		}
	}
	asked(f, "5 documents, 5 key sets", t)
}

// TestDirectoryStalls: a provider that stalls costs little while its last answer is there.
func TestDirectoryStalls(t *testing.T) {
	t.Parallel()
	f := start(t)
	c := newClock()
	d := directoryAt(t, c)
	d.limit = time.Minute
	us := trust{issuer: f.Base("oidc")}
	text := f.IDToken("oidc", fakeidp.Ann, map[string]any{"exp": time.Now().Add(1000 * time.Hour).Unix()})
	must.Succeed(t, must.ErrOf(d.verified(t.Context(), us, text)))
	c.advance(2 * time.Hour)
	f.Behave("oidc", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"discovery": fakeidp.Slow(time.Hour),
		"keys": fakeidp.Slow(time.Hour)}})
	began := time.Now()
	if _, err := d.verified(t.Context(), us, text); err != nil {
		t.Errorf("while the provider stalls: %v", err)
	}
	if took := time.Since(began); took >= d.limit {
		t.Errorf("it took %s", took)
	}
}

// TestDirectoryFailure: a failure without anything to fall back on is remembered, too, and ends.
func TestDirectoryFailure(t *testing.T) {
	t.Parallel()
	f := start(t)
	c := newClock()
	text := f.IDToken("oidc", fakeidp.Ann, nil)
	us := trust{issuer: f.Base("oidc")}
	for what, a := range badAnswers() {
		for _, part := range []string{"discovery", "keys"} {
			f.Reset()
			f.Behave("oidc", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{part: a}})
			d := directoryAt(t, c)
			for range 4 {
				var away *unreachableError
				if _, err := d.verified(t.Context(), us, text); !errors.As(err, &away) {
					t.Errorf("%s, %s: %v", part, what, err)
				}
			}
			want := "1 documents, 0 key sets"
			if part == "keys" {
				want = "1 documents, 1 key sets"
			}
			asked(f, want, t)
			f.Behave("oidc", fakeidp.Behaviour{})
			c.advance(failurePause + time.Second)
			if _, err := d.verified(t.Context(), us, text); err != nil {
				t.Errorf("%s, %s, later: %v", part, what, err)
			}
		}
	}
}

func TestDirectoryKeySwap(t *testing.T) {
	t.Parallel()
	f := start(t)
	c := newClock()
	d := directoryAt(t, c)
	us := trust{issuer: f.Base("oidc")}
	sign := func() string {
		return f.IDToken("oidc", fakeidp.Ann, map[string]any{"exp": time.Now().Add(1000 * time.Hour).Unix()})
	}
	old := sign()
	must.Succeed(t, must.ErrOf(d.verified(t.Context(), us, old)))
	f.SwapKeys() // right after its keys were fetched
	swapped := sign()
	if _, err := d.verified(t.Context(), us, swapped); err != nil {
		t.Errorf("signed with a new key: %v", err)
	}
	if _, err := d.verified(t.Context(), us, old); !errors.Is(err, token.ErrUnknownKey) {
		t.Errorf("signed with a key that is gone: %v", err)
	}
	asked(f, "1 documents, 3 key sets", t)

	// A new key under an old one's id is found too.
	c.advance(3 * unknownPause)
	f.ReplaceKeys()
	swapped = sign()
	if _, err := d.verified(t.Context(), us, swapped); err != nil {
		t.Errorf("signed with a new key of the same id: %v", err)
	}
	asked(f, "1 documents, 4 key sets", t)

	// Tokens with invented keys cause a few fetches and then one every half minute, whatever their number.
	f.Behave("oidc", fakeidp.Behaviour{Header: func(h map[string]any) { h["kid"] = "invented" }})
	invented := sign()
	f.Reset()
	for range 7 {
		for range 20 {
			if _, err := d.verified(t.Context(), us, invented); !errors.Is(err, token.ErrUnknownKey) {
				t.Fatalf("an invented key: %v", err)
			}
		}
		c.advance(10 * time.Second)
	}
	asked(f, "0 documents, 4 key sets", t) // two that were left, and two in a minute

	// While the provider is unreachable, the keys that are known stay good.
	c.advance(unknownPause + time.Second)
	f.Behave("oidc", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"keys": fakeidp.ServerError}})
	if _, err := d.verified(t.Context(), us, invented); !errors.Is(err, token.ErrUnknownKey) {
		t.Errorf("an invented key while the provider is away: %v", err)
	}
	if _, err := d.verified(t.Context(), us, swapped); err != nil {
		t.Errorf("a good token while the provider is away: %v", err)
	}
}

// TestDirectory_callerGivesUp: a caller that gives up doesn't cancel the look-up.
func TestDirectory_callerGivesUp(t *testing.T) {
	t.Parallel()
	f := start(t)
	d := directoryAt(t, newClock())
	us := trust{issuer: f.Base("oidc")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{}) // the look-up does not end before the caller has left
	_, err := d.of(us.issuer).document.get(ctx, func(ctx context.Context) (*document, error) {
		<-release
		return d.fetchDocument(ctx, us)
	})
	close(release)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
	if _, err := d.document(t.Context(), us); err != nil {
		t.Error(err)
	}
	asked(f, "1 documents, 0 key sets", t)
}

func TestDirectoryForgets(t *testing.T) {
	t.Parallel()
	c := newClock()
	d := directoryAt(t, c)
	first := d.of("https://first.example")
	for i := range maxIssuers + 10 {
		c.advance(time.Second)
		d.of(fmt.Sprintf("https://%d.example", i))
		if d.of("https://first.example") != first {
			t.Fatal("an issuer in use is forgotten")
		}
	}
	if len(d.issuers) != maxIssuers {
		t.Errorf("%d issuers are kept, want %d", len(d.issuers), maxIssuers)
	}
	// One that has answered outlives any number of invented ones.
	first.document.value, first.document.has = &document{}, true
	for i := range maxIssuers + 10 {
		c.advance(time.Second)
		d.of(fmt.Sprintf("https://invented-%d.example", i))
	}
	if d.of("https://first.example") != first {
		t.Error("invented issuers drive out one that has answered")
	}
}

func TestReadDocument(t *testing.T) {
	us := trust{issuer: "https://idp.example"}
	read := func(text string) (*document, error) {
		t.Helper()
		o, err := decodeObject([]byte(text))
		must.Succeed(t, err)
		return readDocument(o, us)
	}
	d, err := read(`{"issuer":"https://idp.example","jwks_uri":"https://keys.example/k","id_token_signing_alg_values_supported":["none","HS256","ES256","RS1","PS512"]}`)
	if err != nil || strings.Join(d.algs, " ") != "ES256 PS512" || d.keys != "https://keys.example/k" ||
		d.pkce || d.sendsIssuer {
		t.Errorf("%+v %v", d, err)
	}
	if d, err = read(`{"issuer":"https://idp.example"}`); err != nil || strings.Join(d.algs, " ") != "RS256" {
		t.Errorf("%+v %v", d, err)
	}
	if d, err = read(
		`{"issuer":"https://idp.example","id_token_signing_alg_values_supported":["HS256","none"]}`); err != nil ||
		len(d.algs) != 0 {
		t.Errorf("only symmetric ones: %+v %v", d, err)
	}
	for _, text := range []string{
		`{}`, `{"issuer":"https://evil.example"}`, `{"issuer":"https://idp.example/"}`,
		`{"issuer":"HTTPS://idp.example"}`, `{"issuer":["https://idp.example"]}`,
		`{"issuer":"https://idp.example","jwks_uri":"http://idp.example/k"}`,
		`{"issuer":"https://idp.example","token_endpoint":"file:///etc/passwd"}`,
		`{"issuer":"https://idp.example","token_endpoint":"/token"}`,
		`{"issuer":"https://idp.example","authorization_endpoint":"javascript:alert(1)"}`,
		`{"issuer":"https://idp.example","userinfo_endpoint":"https://u:p@idp.example/"}`,
	} {
		if d, err := read(text); err == nil {
			t.Errorf("%s is taken: %+v", text, d)
		}
	}
}

// TestNoEndpoints: a custom provider whose document can't be had, or is of no use, is a clear error at once.
func TestNoEndpoints(t *testing.T) {
	t.Parallel()
	f := start(t)
	for _, b := range map[string]fakeidp.Behaviour{
		"away":         {Answers: map[string]fakeidp.Answer{"discovery": fakeidp.ServerError}},
		"no endpoints": {Discovery: func(d map[string]any) { delete(d, "token_endpoint") }},
		"other issuer": {Discovery: func(d map[string]any) { d["issuer"] = "https://evil.example" }},
	} {
		f.Behave("oidc", b)
		p, err := setOf(t, settingsOf(f)).Lookup("local")
		must.Succeed(t, err)
		_, err = p.Begin(t.Context(), Start{State: "s"})
		wantError(t, err, http.StatusInternalServerError, "unexpected_failure",
			"Error reaching the external provider", "")
	}
}
