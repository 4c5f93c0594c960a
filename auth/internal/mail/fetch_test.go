package mail

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/outbound"
)

// site serves a template and counts.
type site struct {
	*httptest.Server
	gets   atomic.Int64
	answer atomic.Pointer[http.HandlerFunc]
}

func newSite(t *testing.T) *site {
	s := &site{}
	s.serve("<p>one {{ .Email }}</p>")
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.gets.Add(1)
		(*s.answer.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) do(f http.HandlerFunc) { s.answer.Store(&f) }

func (s *site) serve(text string) {
	s.do(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

func (s *site) fail(status int) {
	s.do(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); fmt.Fprint(w, "<p>no</p>") })
}

// clock is a time that a test moves.
type clock struct{ at atomic.Int64 }

func (c *clock) Now() time.Time          { return noon.Add(time.Duration(c.at.Load())) }
func (c *clock) Advance(d time.Duration) { c.at.Add(int64(d)) }

func TestTemplates(t *testing.T) {
	s, c := newSite(t), new(clock)
	var log bytes.Buffer
	r := NewRenderer(RendererOptions{Now: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	settings := Settings{
		SiteURL:   s.URL,
		Subjects:  map[Kind]string{MagicLink: "Mine, {{ .Email }}"},
		Templates: map[Kind]string{MagicLink: s.URL + "/t.html?key=geheim", Recovery: "/mails/recovery.html"},
	}
	if err := settings.Check(); err != nil {
		t.Fatal(err)
	}
	r.Apply(settings)
	const builtIn = "go ahead."
	f := func(what, holds string, gets int64) {
		t.Helper()
		before := s.gets.Load()
		m := rendered(t, r, MagicLink, everything())
		if !strings.Contains(m.HTML, holds) || !strings.Contains(m.Text, strings.Trim(holds, "<p>")) {
			t.Errorf("%s: %s\n%s", what, m.HTML, m.Text)
		}
		if m.Subject != "Mine, ada@acme.test" {
			t.Errorf("%s: subject %q", what, m.Subject)
		}
		if n := s.gets.Load() - before; n != gets {
			t.Errorf("%s: %d GETs, want %d", what, n, gets)
		}
	}
	s.fail(500)
	f("never loaded", builtIn, 1)
	f("not again at once", builtIn, 0)
	c.Advance(10 * time.Second)
	s.serve("<p>one {{ .Email }</p>")
	f("unparsable", builtIn, 1)
	c.Advance(10 * time.Second)
	s.serve(`<a href="{{ if .Email }}"{{ end }}>x</a>`)
	f("no place for HTML", builtIn, 1)
	c.Advance(10 * time.Second)
	s.serve("<p>one {{ .Email }}</p>")
	f("loaded", "<p>one ada@acme.test", 1)
	s.serve("<p>two {{ .Email }}</p>")
	f("fresh", "<p>one ada@acme.test", 0)
	r.Apply(settings)
	f("the same settings again", "<p>one ada@acme.test", 0)
	c.Advance(10*time.Minute - time.Second)
	f("still fresh", "<p>one ada@acme.test", 0)
	c.Advance(time.Second)
	f("loaded again", "<p>two ada@acme.test", 1)
	c.Advance(10 * time.Minute)
	for _, status := range []int{404, 503, 204, 203} {
		s.fail(status)
		f(fmt.Sprint("status ", status), "<p>two", 1)
		f("the last good one stays", "<p>two", 0)
		c.Advance(10 * time.Second)
	}
	for what, text := range map[string]string{
		"too big": "<p>x</p>" + strings.Repeat(" ", 1_000_000), "empty": " \n", "not UTF-8": "\xff", "unparsable": "{{",
	} {
		s.serve(text)
		f(what, "<p>two", 1)
		c.Advance(10 * time.Second)
	}
	s.serve("<p>three</p>" + strings.Repeat(" ", 1_000_000-12))
	f("just small enough", "<p>three", 1)
	c.Advance(10 * time.Minute)
	s.serve("{{ .Data.name.first }}")
	f("fails while rendering", builtIn, 1)
	if text := log.String(); strings.Contains(text, "geheim") || strings.Contains(text, "Ada") ||
		strings.Contains(text, "ada@") {
		t.Errorf("the log tells too much:\n%s", text)
	} else if !strings.Contains(text, "/t.html") || !strings.Contains(text, "more than 1000000 bytes") ||
		!strings.Contains(text, "status 404") {
		t.Errorf("the log tells too little:\n%s", text)
	}

	s.do(func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "<p>"+q.URL.Path+"</p>") })
	if m := rendered(t, r, Recovery, everything()); !strings.Contains(m.HTML, "<p>/mails/recovery.html</p>") ||
		m.Subject != "Reset your password" {
		t.Errorf("relative: %q %s", m.Subject, m.HTML)
	}
}

// TestTemplates_escaping: what users write stays text.
func TestTemplates_escaping(t *testing.T) {
	s := newSite(t)
	s.serve(`<p title="{{ .Data.name }}">{{ .Data.name }}</p><a href="{{ .ConfirmationURL }}">x</a><a href="{{ .Data.url }}">y</a>{{ .Nothing }}{{ .Data.nothing }}`)
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{SiteURL: s.URL, Templates: map[Kind]string{Invite: "t"}})
	m := rendered(t, r, Invite, Vars{
		ConfirmationURL: "https://a.test/?a=1&b=ü",
		Data:            []byte(`{"name": "\"><script>alert(1)</script>", "url": "javascript:alert(1)"}`),
	})
	want :=
		`<p title="&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;">&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>` +
			`<a href="https://a.test/?a=1&amp;b=%c3%bc">x</a><a href="#ZgotmplZ">y</a>`
	if m.HTML != want {
		t.Errorf("%s\nwant\n%s", m.HTML, want)
	}
}

// TestTemplates_together: many mails at once cost one GET; those with a last good template don't wait.
func TestTemplates_together(t *testing.T) {
	s, c := newSite(t), new(clock)
	r := NewRenderer(RendererOptions{Now: c.Now, Log: quiet()})
	r.Apply(Settings{SiteURL: s.URL, Templates: map[Kind]string{Invite: "t"}})
	asked, answer := make(chan bool, 10), make(chan bool)
	s.do(func(w http.ResponseWriter, _ *http.Request) {
		asked <- true
		<-answer
		fmt.Fprint(w, "<p>new</p>")
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if m := rendered(t, r, Invite, everything()); m.HTML != "<p>new</p>" {
				t.Errorf("%s", m.HTML)
			}
		})
	}
	<-asked
	close(answer)
	wg.Wait()
	if n := s.gets.Load(); n != 1 {
		t.Errorf("%d GETs for 20 mails", n)
	}

	c.Advance(time.Hour)
	answer = make(chan bool)
	s.do(func(w http.ResponseWriter, _ *http.Request) {
		asked <- true
		<-answer
		fmt.Fprint(w, "<p>newer</p>")
	})
	wg.Go(func() { rendered(t, r, Invite, everything()) })
	<-asked
	for range 20 {
		if m := rendered(t, r, Invite, everything()); m.HTML != "<p>new</p>" {
			t.Errorf("%s", m.HTML)
		}
	}
	close(answer)
	wg.Wait()
	if m := rendered(t, r, Invite, everything()); m.HTML != "<p>newer</p>" {
		t.Errorf("%s", m.HTML)
	}
}

// TestTemplates_cut: a site that never answers costs no more than the caller gives.
func TestTemplates_cut(t *testing.T) {
	s := newSite(t)
	s.do(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{SiteURL: s.URL, Templates: map[Kind]string{Invite: "t"}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	m, err := r.Render(ctx, Payload{Kind: Invite, Vars: everything()})
	if err != nil || !strings.Contains(m.HTML, "You have been invited") {
		t.Errorf("%v: %s", err, m.HTML)
	}
}

// TestTemplates_redirectToPrivate: a redirect may lead anywhere from a loopback address, but not from a public one
// to a loopback one.
func TestTemplates_redirectToPrivate(t *testing.T) {
	inner, outer := newSite(t), newSite(t)
	inner.serve("<p>inner</p>")
	outer.do(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, inner.URL, http.StatusFound) })
	f := func(public bool, want string) {
		t.Helper()
		r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
		first := true
		r.fetch = fetcherWith(outbound.Options{Public: func(netip.Addr) bool {
			defer func() { first = false }()
			return public && first
		}})
		r.Apply(Settings{SiteURL: outer.URL, Templates: map[Kind]string{Invite: "t"}})
		if m := rendered(t, r, Invite, everything()); !strings.Contains(m.HTML, want) {
			t.Errorf("public %v: %s, want %s", public, m.HTML, want)
		}
	}
	f(false, "<p>inner</p>")
	f(true, "You have been invited")
	if n := inner.gets.Load(); n != 1 {
		t.Errorf("%d requests reached the inner site", n)
	}
}

func TestSettings_check(t *testing.T) {
	err := Settings{
		SiteURL:   "https://app.acme.test",
		Subjects:  map[Kind]string{Invite: "{{ .X", Recovery: "fine"},
		Templates: map[Kind]string{Reauthentication: "http://", MagicLink: "httpx://a.test", Invite: "x.html"},
	}.Check()
	text := fmt.Sprint(err)
	for _, want := range []string{"AUTH_MAILER_SUBJECTS_INVITE", "AUTH_MAILER_TEMPLATES_REAUTHENTICATION",
		"AUTH_MAILER_TEMPLATES_MAGIC_LINK"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
	if strings.Count(text, "AUTH_") != 3 {
		t.Error(text)
	}
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	r.Apply(Settings{Subjects: map[Kind]string{Invite: "{{ .X"}})
	if m := rendered(t, r, Invite, Vars{}); m.Subject != "You've been invited" {
		t.Errorf("subject %q", m.Subject)
	}
}

// TestTemplates_reloading: what mails use is kept fresh without them, until none has used it for long.
func TestTemplates_reloading(t *testing.T) {
	s, c := newSite(t), new(clock)
	r := NewRenderer(RendererOptions{Now: c.Now, Log: quiet()})
	settings := Settings{SiteURL: s.URL, Templates: map[Kind]string{Invite: "t"}, Reloading: true}
	r.Apply(settings)
	f := func(what string, gets int64) {
		t.Helper()
		before := s.gets.Load()
		r.refresh(t.Context())
		if n := s.gets.Load() - before; n != gets {
			t.Errorf("%s: %d GETs, want %d", what, n, gets)
		}
	}
	f("never used", 0)
	rendered(t, r, Invite, everything())
	f("fresh", 0)
	c.Advance(10 * time.Minute)
	f("old", 1)
	c.Advance(10 * time.Minute)
	f("old, but nobody used it for 20 minutes", 0)
	rendered(t, r, Invite, everything())
	c.Advance(10 * time.Minute)
	settings.Reloading = false
	r.Apply(settings)
	f("switched off", 0)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() { r.Run(ctx); close(done) }()
	cancel()
	<-done
}

func TestTemplates_load(t *testing.T) {
	s := newSite(t)
	r := NewRenderer(RendererOptions{Now: time.Now, Log: quiet()})
	if err := r.Load(t.Context()); err != nil {
		t.Error(err)
	}
	r.Apply(Settings{SiteURL: s.URL, Templates: map[Kind]string{Invite: "t?key=geheim", Recovery: "u"}})
	if err := r.Load(t.Context()); err != nil {
		t.Error(err)
	}
	bare := NewRenderer(RendererOptions{})
	bare.Apply(Settings{SiteURL: s.URL, Templates: map[Kind]string{Invite: "t"}})
	if m := rendered(t, bare, Invite, everything()); !strings.Contains(m.HTML, "<p>one") {
		t.Errorf("without options: %s", m.HTML)
	}
	s.fail(500)
	err := r.Load(t.Context())
	if text := fmt.Sprint(err); !strings.Contains(text,
		"AUTH_MAILER_TEMPLATES_INVITE: "+s.URL+"/t: the answer is status 500") ||
		!strings.Contains(text, "AUTH_MAILER_TEMPLATES_RECOVERY") || strings.Contains(text, "geheim") {
		t.Error(text)
	}
	if m := rendered(t, r, Invite, everything()); !strings.Contains(m.HTML, "<p>one") {
		t.Errorf("the last good one is gone: %s", m.HTML)
	}
}
