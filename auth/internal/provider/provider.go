// Package provider speaks the protocols of external identity providers: OAuth 2.0, OpenID Connect and Twitter's OAuth
// 1.0a for sign-ins in a browser, and ID tokens that an application got by itself (native ID tokens). table.go has a
// row for each built-in provider (docs/providers.md#providers); what a row cannot express is in quirks.go, azure.go and
// twitter.go. Custom providers, which speak OpenID Connect, need only settings.
//
// The package knows no accounts, no SQL and no HTTP server. A caller stores the result of Begin with the state, and
// passes the callback's parameters to Finish, which returns the user's profile. The package decides which addresses a
// provider has verified (Email.Verified); the caller decides what follows from that. All calls go through package
// outbound. Errors contain no secret, code or token.
package provider

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/outbound"
)

// Email is an e-mail address from a provider: in lower case, never empty.
type Email struct {
	Address           string
	Verified, Primary bool
}

// Profile describes the user who signed in, as the provider does.
type Profile struct {
	Provider string // as stored with the identity
	Subject  string // never empty
	Emails   []Email
	// BadEmail is true if the provider returned an e-mail address that is not valid. Emails does not have this address.
	BadEmail bool
	// Data is the data of the identity, without email, email_verified and phone_verified: iss, sub, provider_id, name,
	// full_name and the like. Empty fields are left out; custom_claims is an object. Every value can be stored as
	// PostgreSQL's jsonb.
	Data map[string]any
	// Token and RefreshToken are the provider's tokens; "" if the provider gave none.
	Token, RefreshToken string
}

// Set holds all configured providers. It never changes: a reload of the settings makes another Set.
type Set struct {
	byName map[string]*Provider // by every name that Lookup accepts
	own    []*Provider          // the built-in providers, then the custom ones by name
	iosApp string
}

// Provider is a configured provider.
type Provider struct {
	row
	name    string // as stored in identities.provider
	client  Client
	base    string // the operator's or the row's base URL; "" if the row has whole URLs
	domains []string
	http    outbound.Clients
	issuers *directory
	now     func() time.Time
}

// maxIdle is how long a connection may be idle before it is used again. A server may close a connection that was idle
// for longer at the moment when a code is sent, and a code can be sent only once.
const maxIdle = 2 * time.Second

// New returns the Set for settings that Check has accepted. A Set keeps connections and caches; Close closes the
// connections of a Set that has been replaced.
func New(s Settings) (*Set, error) {
	for _, p := range s.Check() {
		if !p.Warning {
			return nil, fmt.Errorf("%s %s", p.Name, p.Text)
		}
	}
	s = s.withDefaults()
	clients := outbound.New(outbound.Options{Timeout: s.Timeout, MaxIdle: maxIdle, Public: s.Public, Watch: s.Watch})
	issuers := newDirectory(clients, s)
	set := &Set{byName: map[string]*Provider{}, iosApp: s.IOSBundleID}
	add := func(r row, name string, c Client) {
		p := &Provider{
			row: r, name: name, client: c, base: strings.TrimSuffix(c.URL, "/"), domains: s.AzureVerifiedDomains,
			http: clients, issuers: issuers, now: s.Now,
		}
		p.base = cmp.Or(p.base, r.base)
		set.own = append(set.own, p)
		set.byName[name] = p
		for _, alias := range p.Aliases() {
			set.byName[alias] = p
		}
	}
	for _, id := range Names() {
		c := s.Clients[id]
		add(rowOf(id, c.Mode), id, c)
	}
	for _, name := range slices.Sorted(maps.Keys(s.OIDC)) {
		add(customRow(s.OIDC[name]), name, s.OIDC[name])
	}
	return set, nil
}

// Close closes the idle connections of the Set.
func (s *Set) Close() {
	if len(s.own) > 0 {
		s.own[0].http.CloseIdle()
	}
}

// Names returns the names of the enabled providers: first the built-in ones, then the custom ones.
func (s *Set) Names() (names []string) {
	for _, p := range s.own {
		if p.client.Enabled {
			names = append(names, p.name)
		}
	}
	return names
}

// Known returns the provider with the name of a Profile, even if only native ID tokens can sign in with it; nil if
// there is none.
func (s *Set) Known(name string) *Provider { return s.byName[name] }

// Lookup returns the provider for a sign-in in a browser, ignoring the case of the name. The error says why there is
// none.
func (s *Set) Lookup(name string) (*Provider, error) {
	unsupported := func(reason string) (*Provider, error) {
		return nil, &Error{Status: http.StatusBadRequest, Code: "validation_failed",
			Message: "Unsupported provider: " + reason}
	}
	plain, custom := plainName(name)
	p := s.byName[plain]
	switch {
	case name == "":
		return unsupported("no provider is named")
	case p == nil, custom && p.id != "":
		return unsupported(fmt.Sprintf("Provider %.64s could not be found", strings.ToLower(name)))
	case !p.client.Enabled:
		return unsupported("provider is not enabled")
	case p.clientID() == "":
		return unsupported("missing OAuth client ID")
	case p.client.Secret == "":
		return unsupported("missing OAuth secret")
	case p.client.RedirectURI == "":
		return unsupported("missing redirect URI")
	}
	return p, nil
}

// plainName returns a name from a request in lower case. supabase/auth and the client library name custom providers
// custom:NAME. For such a name, custom is true, and plain is NAME as settings write it, with _ for - and :.
func plainName(name string) (plain string, custom bool) {
	plain, custom = strings.CutPrefix(strings.ToLower(name), "custom:")
	if custom {
		plain = strings.NewReplacer("-", "_", ":", "_").Replace(plain)
	}
	return plain, custom
}

// Name returns the name under which identities of the provider are stored.
func (p *Provider) Name() string { return p.name }

// String returns the name, so that the client secret is not printed.
func (p *Provider) String() string { return p.name }

// GoString returns the name for %#v, so that the client secret is not printed.
func (p *Provider) GoString() string { return p.name }

// Aliases returns further names by which the provider is found, and under which older identities with the same subjects
// may be stored.
func (p *Provider) Aliases() []string { return p.aliases }

// EmailOptional reports whether a user without any address may sign in.
func (p *Provider) EmailOptional() bool { return p.client.EmailOptional }

// FormPost reports whether the callback is a POST from the provider's site. With such a POST, browsers send only
// cookies with SameSite=None.
func (p *Provider) FormPost() bool { return p.formPost }

// clientID returns the first client ID; "" if there is none.
func (p *Provider) clientID() string { return cmp.Or(p.client.ClientIDs...) }

// resolve returns the URL for a reference in the provider's row. If the operator has set a base URL, it replaces scheme
// and host; the path stays.
func (p *Provider) resolve(ref string) string {
	if strings.HasPrefix(ref, "/") {
		return p.base + ref
	}
	if p.client.URL == "" || ref == "" {
		return ref
	}
	u, err := url.Parse(ref)
	if err != nil {
		return ref // a test checks that the table's URLs are valid
	}
	return p.base + u.Path
}

// apiURL returns the base URL of calls to the profile endpoint.
func (p *Provider) apiURL() string {
	if p.api == "" {
		return p.base
	}
	if p.client.URL != "" && p.apiAt != "" {
		return strings.TrimSuffix(p.base+p.apiAt, "/")
	}
	return p.resolve(p.api)
}

// private is the content of Begun.Private.
type private struct {
	Verifier string `json:"v,omitempty"` // PKCE, RFC 7636
	Nonce    string `json:"n,omitempty"` // OpenID Connect
	Token    string `json:"t,omitempty"` // OAuth 1.0a request token
	Secret   string `json:"s,omitempty"` // secret of the request token
}

func (s private) seal() []byte {
	text, _ := json.Marshal(s) // strings only
	return text
}

func openPrivate(text []byte) (s private, err error) {
	if len(text) > 0 {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// randomText returns 32 random bytes in base64url: 43 characters, the minimum of RFC 7636, section 4.1.
func randomText() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// endpoints are the URLs for a sign-in in a browser, and the HTTP client for calls to the token endpoint.
type endpoints struct {
	authorize, token string
	client           *http.Client
	document         *document // the discovery document that has the URLs; nil if the table has them
}

func (p *Provider) endpoints(ctx context.Context) (endpoints, error) {
	if !p.discovers() {
		return endpoints{authorize: p.resolve(p.row.authorize), token: p.resolve(p.row.token),
			client: p.http.Configured}, nil
	}
	d, err := p.issuers.document(ctx, p.trust())
	if err != nil {
		return endpoints{}, err
	}
	e := endpoints{d.authorize, d.token, d.client(p.http), d}
	if p.row.authorize != "" && e.authorize == "" { // the paths of Apple and Google are known
		e.authorize = p.resolve(p.row.authorize)
	}
	if p.row.token != "" && e.token == "" {
		e.token, e.client = p.resolve(p.row.token), p.http.Configured
	}
	if e.authorize == "" || e.token == "" {
		return endpoints{}, fmt.Errorf("%s names no authorization_endpoint or no token_endpoint", p.trust().issuer)
	}
	return e, nil
}

// discovers reports whether the endpoints come from a discovery document instead of the table.
func (p *Provider) discovers() bool {
	return p.row.authorize == "" || p.discovered && p.client.URL != ""
}
