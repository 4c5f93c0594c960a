package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"sync/atomic"
	"text/template"
	"time"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/outbound"
)

// fetchTimeout limits the time that loading a template from its URL may take.
const fetchTimeout = 10 * time.Second

// fetchLimits are the limits for loading a template: its size in bytes, how long a loaded version is fresh, and the
// pause after a failure. They are comparable: if they change, templates are loaded again.
type fetchLimits struct {
	size       int64
	age, retry time.Duration
}

func (l fetchLimits) withDefaults() fetchLimits {
	if l.size <= 0 {
		l.size = 1_000_000
	}
	if l.age <= 0 {
		l.age = 10 * time.Minute
	}
	if l.retry <= 0 {
		l.retry = 10 * time.Second
	}
	return l
}

// remote is the body of a mail whose template is loaded from a URL. The last version that was loaded successfully stays
// in use, however old it is, until a newer one is loaded.
type remote struct {
	url    string
	limits fetchLimits
	used   atomic.Int64 // when a mail last used it, in Unix nanoseconds

	mu      sync.Mutex
	good    *body
	next    time.Time     // good is fresh until then, and is not loaded again before
	loading chan struct{} // nil, or closed when the load in progress ends
}

// get returns the body, or nil if it was never loaded successfully. If the body is no longer fresh, one caller loads
// it. Meanwhile the other callers get the last good version, or wait if there is none.
func (b *remote) get(ctx context.Context, r *Renderer) *body {
	b.mu.Lock()
	if r.now().Before(b.next) || b.loading != nil && b.good != nil {
		defer b.mu.Unlock()
		return b.good
	}
	if wait := b.loading; wait != nil {
		b.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.good
	}
	done := make(chan struct{})
	b.loading = done
	b.mu.Unlock()

	loaded, err := r.fetch.load(ctx, b.url, b.limits.size)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.loading = nil
	close(done)
	now := r.now()
	if err != nil {
		b.next = now.Add(b.limits.retry)
		r.log.Error("a mail template can't be loaded", "template", b.shown(), "error", err, "last_good_used",
			b.good != nil)
		return b.good
	}
	b.good, b.next = loaded, now.Add(b.limits.age)
	return b.good
}

// shown returns the URL for logs, without user, password and query, which may contain keys.
func (b *remote) shown() string {
	u, err := url.Parse(b.url)
	if err != nil {
		return "(no URL)"
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// fetcher loads templates from URLs and files.
type fetcher struct{ web outbound.Clients }

// newFetcher returns a fetcher. It follows redirects to other hosts, since a site may keep its files on another host.
func newFetcher(w outbound.Watch) *fetcher {
	return fetcherWith(outbound.Options{Watch: w, Target: "template"})
}

func fetcherWith(o outbound.Options) *fetcher {
	o.Timeout, o.OtherHosts = fetchTimeout, true
	o.MaxBytes = math.MaxInt64 - 1 // load enforces its own limit, a setting that can change
	return &fetcher{outbound.New(o)}
}

// filePath returns the path of a file: URL. local is true for any file: URL; path is "" if the URL names another
// machine.
func filePath(location string) (path string, local bool) {
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	if u.Host != "" {
		return "", true // the URL names a file of another machine
	}
	return u.Path, true
}

// load reads the template of a URL with one GET request, or reads the file of a file: URL. It fails if the status is
// not 200 or the template has more than size bytes.
func (f *fetcher) load(ctx context.Context, location string, size int64) (*body, error) {
	if path, local := filePath(location); local {
		text, err := readFile(path, size)
		if err != nil {
			return nil, err
		}
		return parseBody(string(text))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return nil, errors.New("it is no URL")
	}
	resp, err := f.web.Configured.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // remove the URL, which may contain a key
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is status %d, not 200", resp.StatusCode)
	}
	text, err := readTemplate(resp.Body, size)
	if err != nil {
		return nil, err
	}
	return parseBody(string(text))
}

// templateLine matches the beginning of an error of package template: the template's name and the line.
var templateLine = regexp.MustCompile(`^template: ([^:]+:[0-9]+):`)

// templateMistake returns the text of an error that occurred when a template was rendered: the template, the line and
// the cause. It omits the rendered values, which must not be logged.
func templateMistake(err error) string {
	if errors.Is(err, locale.ErrTooLong) {
		return locale.ErrTooLong.Error()
	}
	if e, ok := errors.AsType[*locale.BrokenError](err); ok {
		return e.Where + ": " + templateMistake(e.Err)
	}
	if e, ok := errors.AsType[template.ExecError](err); ok {
		where := e.Name
		if m := templateLine.FindStringSubmatch(e.Error()); m != nil {
			where = m[1]
		}
		return "in template " + where + ": a value isn't of the kind that the template needs"
	}
	return "it is no template for HTML"
}

// refreshEvery is how often Run checks whether templates are still fresh.
const refreshEvery = 5 * time.Second

// Run keeps the templates of mails fresh until ctx ends, if Settings.Reloading is set. Otherwise a template that is no
// longer fresh is loaded when the next mail needs it.
func (r *Renderer) Run(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.refresh(ctx)
		}
	}
}

// refresh loads the templates that are no longer fresh and that a mail has used within Settings.MaxIdle.
func (r *Renderer) refresh(ctx context.Context) {
	t, now := r.texts.Load(), r.now()
	for _, b := range t.bodies {
		if t.Reloading && now.Sub(time.Unix(0, b.used.Load())) < cmp.Or(t.MaxIdle, 20*time.Minute) {
			b.get(ctx, r)
		}
	}
}

// Load loads every template, even if it is fresh, and returns the errors of the loads that failed. It is called by the
// command "auth check", and when the daemon starts, so that the first mail does not wait for its template.
func (r *Renderer) Load(ctx context.Context) error {
	var bad []error
	t := r.texts.Load()
	for _, kind := range Kinds {
		b := t.bodies[kind]
		if b == nil {
			continue
		}
		loaded, err := r.fetch.load(ctx, b.url, b.limits.size)
		if err != nil {
			bad = append(bad, fmt.Errorf("AUTH_MAILER_TEMPLATES_%s: %s: %w", kind.Setting(), b.shown(), err))
			continue
		}
		b.mu.Lock()
		b.good, b.next = loaded, r.now().Add(b.limits.age)
		b.mu.Unlock()
	}
	return errors.Join(bad...)
}
