package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/token"
)

const (
	// failurePause is the pause after a failed look-up. During the pause, callers get the last good answer or, if there
	// is none, the failure.
	failurePause = 2 * time.Second
	// Any client can send a token that is signed by an unknown key, and each such token makes the daemon fetch the
	// issuer's keys again. Such a fetch is allowed once in each unknownPause. If there was none for long, up to
	// unknownBurst fetches may follow each other at once, so that a provider's new keys are accepted.
	unknownPause = 30 * time.Second
	unknownBurst = 3
	// maxIssuers is how many issuers a directory caches. It limits the memory: with Azure's base URL "common", every
	// tenant is an issuer.
	maxIssuers = 500
)

// trust is an issuer whose ID tokens are accepted: the name under which its discovery document is fetched, and other
// spellings of the name in tokens and documents. The zero trust accepts no token.
type trust struct {
	issuer string
	also   []string
	// learn matches another spelling of the name that the issuer's document may give, and which its tokens then have.
	// Azure needs it: tenants may be configured by name, but always sign with their ID.
	learn func() *regexp.Regexp
}

func (t trust) accepts(iss string) bool {
	return iss != "" && (iss == t.issuer || slices.Contains(t.also, iss))
}

// document holds those parts of a discovery document (OpenID Connect Discovery 1.0, section 3) that this package uses.
type document struct {
	issuer                           string
	authorize, token, userinfo, keys string
	algs                             []string
	style                            oauth2.AuthStyle
	pkce, sendsIssuer                bool
	public                           bool // fetched from a public address, so URLs in it must have public addresses too
}

func (d *document) client(c outbound.Clients) *http.Client {
	if d.public {
		return c.Discovered
	}
	return c.Configured
}

// keySet holds the keys of an issuer, and when they were fetched.
type keySet struct {
	keys []token.ForeignKey
	at   time.Time
}

// directory caches the discovery documents and keys of issuers. Concurrent look-ups for the same issuer are merged. An
// expired answer is used as long as a new one cannot be had.
type directory struct {
	clients outbound.Clients
	ttl     time.Duration
	limit   time.Duration // for one look-up
	now     func() time.Time
	log     *slog.Logger

	mu      sync.Mutex
	issuers map[string]*issuer
}

// issuer holds the document and the keys of an issuer. The keys are looked up after the document, which has their URL.
type issuer struct {
	document cached[*document]
	keys     cached[keySet]
	used     time.Time // guarded by directory.mu
	unknown  allowance // guarded by keys.mu
}

// allowance limits how often the keys of an issuer may be fetched before they expire. The zero value allows
// unknownBurst fetches at once.
type allowance struct {
	spent int
	since time.Time // when the last spent fetch was refilled
}

func (a *allowance) take(now time.Time) bool {
	back := min(a.spent, int(now.Sub(a.since)/unknownPause))
	a.spent -= back
	a.since = a.since.Add(time.Duration(back) * unknownPause)
	switch a.spent {
	case unknownBurst:
		return false
	case 0:
		a.since = now
	}
	a.spent++
	return true
}

func newDirectory(c outbound.Clients, s Settings) *directory {
	return &directory{clients: c, ttl: s.DiscoveryTTL, limit: s.Timeout, now: s.Now, log: s.Log,
		issuers: map[string]*issuer{}}
}

func (d *directory) of(name string) *issuer {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.issuers[name]
	if i == nil {
		if len(d.issuers) >= maxIssuers {
			d.dropOldest()
		}
		i = &issuer{
			document: cached[*document]{d: d, what: "discovery document", of: name},
			keys:     cached[keySet]{d: d, what: "key set", of: name},
		}
		d.issuers[name] = i
	}
	i.used = d.now()
	return i
}

// dropOldest drops the least recently used issuer. It prefers issuers that have never answered, since any client can
// invent them. A look-up under way continues for the callers that wait for it.
func (d *directory) dropOldest() {
	oldest, answered := "", true
	for name, i := range d.issuers {
		has := i.document.known()
		if oldest == "" || answered && !has || answered == has && i.used.Before(d.issuers[oldest].used) {
			oldest, answered = name, has
		}
	}
	delete(d.issuers, oldest)
}

// document returns the issuer's discovery document, from the cache or the network.
func (d *directory) document(ctx context.Context, t trust) (*document, error) {
	return d.of(t.issuer).document.get(ctx, func(ctx context.Context) (*document, error) {
		return d.fetchDocument(ctx, t)
	})
}

// keys returns the issuer's keys, which are fetched again when they have expired.
func (d *directory) keys(ctx context.Context, t trust) (keySet, error) {
	doc, err := d.document(ctx, t)
	if err != nil {
		return keySet{}, err
	}
	return d.of(t.issuer).keys.get(ctx, func(ctx context.Context) (keySet, error) {
		return d.fetchKeys(ctx, doc)
	})
}

// keysAfter returns keys that are newer than older. It is called when none of the keys in older has signed a token.
func (d *directory) keysAfter(ctx context.Context, t trust, older keySet) (keySet, error) {
	i := d.of(t.issuer)
	i.keys.expire(func(k keySet) bool { return k.at.Equal(older.at) && i.unknown.take(d.now()) })
	return d.keys(ctx, t)
}

func (d *directory) fetchDocument(ctx context.Context, t trust) (*document, error) {
	at := strings.TrimSuffix(t.issuer, "/") + "/.well-known/openid-configuration"
	body, resp, err := get(ctx, d.clients.Configured, at, http.Header{})
	if err != nil {
		return nil, withoutDescription(err)
	}
	o, err := decodeObject(body)
	if err != nil {
		return nil, fmt.Errorf("the discovery document: %w", err)
	}
	doc, err := readDocument(o, t)
	if err != nil {
		return nil, err
	}
	doc.public = outbound.FromPublic(resp)
	return doc, nil
}

// readDocument checks a discovery document, which must name the issuer that it was fetched for, and returns its parts.
func readDocument(o jsonObject, t trust) (*document, error) {
	issuer := o.textAt("issuer")
	if !t.accepts(issuer) && (t.learn == nil || !t.learn().MatchString(issuer)) {
		return nil, fmt.Errorf("the discovery document is of the issuer %.200q, not of %s", issuer, t.issuer)
	}
	doc := &document{
		issuer:      issuer,
		pkce:        contains(o, "code_challenge_methods_supported", "S256"),
		sendsIssuer: o.isTrue("authorization_response_iss_parameter_supported"),
	}
	for name, into := range map[string]*string{
		"authorization_endpoint": &doc.authorize, "token_endpoint": &doc.token, "userinfo_endpoint": &doc.userinfo,
		"jwks_uri": &doc.keys,
	} {
		text := o.textAt(name)
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
			return nil, fmt.Errorf("%s of the discovery document is no address", name)
		case u.Scheme == "http" && strings.HasPrefix(t.issuer, "https:"):
			return nil, fmt.Errorf("%s of the discovery document is not https", name)
		}
		*into = text
	}
	list, _ := o.lookup("id_token_signing_alg_values_supported").([]any)
	for _, v := range list {
		if name, ok := v.(string); ok && token.ForeignAlgorithm(name) {
			doc.algs = append(doc.algs, name)
		}
	}
	if len(list) == 0 {
		doc.algs = []string{"RS256"}
	}
	// Use client_secret_basic, the default of the specification, unless the document lists client_secret_post and not
	// client_secret_basic.
	doc.style = oauth2.AuthStyleInHeader
	if _, listed := o.lookup("token_endpoint_auth_methods_supported").([]any); listed &&
		!contains(o, "token_endpoint_auth_methods_supported", "client_secret_basic") &&
		contains(o, "token_endpoint_auth_methods_supported", "client_secret_post") {
		doc.style = oauth2.AuthStyleInParams
	}
	return doc, nil
}

func contains(o jsonObject, path, word string) bool {
	list, _ := o.lookup(path).([]any)
	return slices.Contains(list, any(word))
}

func (d *directory) fetchKeys(ctx context.Context, doc *document) (keySet, error) {
	if doc.keys == "" {
		return keySet{}, errors.New("the discovery document names no jwks_uri")
	}
	at := d.now()
	body, _, err := get(ctx, doc.client(d.clients), doc.keys, http.Header{})
	if err != nil {
		return keySet{}, withoutDescription(err)
	}
	keys, err := token.ParseForeignKeys(string(body))
	return keySet{keys, at}, err
}

// verified parses a token, and checks its times and that one of the issuer's keys has signed it. It checks nothing
// else.
func (d *directory) verified(ctx context.Context, t trust, text string) (*token.Foreign, error) {
	id, err := token.ParseForeign(text)
	if err != nil {
		return nil, err
	}
	doc, err := d.document(ctx, t)
	if err != nil {
		return nil, &unreachableError{err}
	}
	if !slices.Contains(doc.algs, id.Alg) {
		return nil, token.ErrAlgorithm
	}
	set, err := d.keys(ctx, t)
	if err != nil {
		return nil, &unreachableError{err}
	}
	err = id.Signed(set.keys, doc.algs)
	if errors.Is(err, token.ErrUnknownKey) || errors.Is(err, token.ErrSignature) { // a key may change and keep its ID
		if set, err = d.keysAfter(ctx, t, set); err != nil {
			return nil, &unreachableError{err}
		}
		err = id.Signed(set.keys, doc.algs)
	}
	if err != nil {
		return nil, err
	}
	if !t.accepts(id.Issuer) && (t.learn == nil || id.Issuer != doc.issuer) {
		return nil, token.ErrIssuer
	}
	return id, id.Timely(d.now())
}

// unreachableError is returned if the issuer could not be reached, so that its token could not be checked.
type unreachableError struct{ err error }

func (u *unreachableError) Error() string { return u.err.Error() }
func (u *unreachableError) Unwrap() error { return u.err }
