// Package provider speaks the protocols of external identity providers: OAuth 2.0, OpenID Connect and Twitter's OAuth
// 1.0a for sign-ins in a browser, and ID tokens that an application got by itself. table.go has a row for each of the
// eighteen (docs/providers.md#providers); what a row cannot express is in quirks.go, azure.go and twitter.go. Further
// OpenID Connect providers need only settings.
//
// It knows no accounts, no SQL and no HTTP server. A caller stores the result of Begin with the state, and passes the
// callback's parameters to Finish, which returns the user's profile. The package decides which addresses a provider has
// verified (Email.Verified), the caller what follows from that. All calls go through package outbound. Errors contain
// no secret, code or token.
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

// Email is an address from a provider: lower-cased, never empty.
type Email struct {
	Address           string
	Verified, Primary bool
}

// Profile describes the user that signed in.
type Profile struct {
	Provider string // as stored with the identity
	Subject  string // never empty
	Emails   []Email
	// BadEmail: the provider returned a text that is not an address and is not in Emails.
	BadEmail bool
	// Data is the identity's data, without email, email_verified and phone_verified: iss, sub, provider_id, name,
	// full_name and the like. Empty fields are left out; custom_claims is an object. Fit for JSON and PostgreSQL's
	// jsonb.
	Data map[string]any
	// Token and RefreshToken are the provider's tokens; "" if it gave none.
	Token, RefreshToken string
}

// Set has all configured providers. It never changes; a reload makes another Set.
type Set struct {
	byName map[string]*Provider // by every name that Lookup accepts
	own    []*Provider          // the eighteen, then the custom ones by name
	iosApp string
}

// Provider is a configured provider.
type Provider struct {
	row
	name    string // identities.provider
	client  Client
	base    string // the operator's or the row's base URL; "" if the row has whole URLs
	domains []string
	http    outbound.Clients
	issuers *directory
	now     func() time.Time
}

// maxIdle is how long a connection may be idle and still be used. A server may close a connection that was idle for
// longer just when a code is sent, which can be exchanged only once.
const maxIdle = 2 * time.Second

// New returns the set for settings that Check has accepted. A set keeps connections and caches; Close closes the
// connections of a replaced set.
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

// Close closes idle connections.
func (s *Set) Close() {
	if len(s.own) > 0 {
		s.own[0].http.CloseIdle()
	}
}

// Names returns the names of the enabled providers: of the eighteen, then of custom ones.
func (s *Set) Names() (names []string) {
	for _, p := range s.own {
		if p.client.Enabled {
			names = append(names, p.name)
		}
	}
	return names
}

// Known returns the provider with a Profile's name, even if it signs in by native ID tokens only.
func (s *Set) Known(name string) *Provider { return s.byName[name] }

// Lookup finds a provider for a sign-in in a browser, ignoring the case of the name. The error says why there is none.
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

// plainName returns a name from a request in lower case. The replaced service and the client library's types name custom
// providers custom:NAME: custom reports such a name, and plain is NAME as settings write it, with _ for - and :.
func plainName(name string) (plain string, custom bool) {
	plain, custom = strings.CutPrefix(strings.ToLower(name), "custom:")
	if custom {
		plain = strings.NewReplacer("-", "_", ":", "_").Replace(plain)
	}
	return plain, custom
}

// Name returns the name under which identities of the provider are stored.
func (p *Provider) Name() string { return p.name }

// String returns the name, without the secret.
func (p *Provider) String() string { return p.name }

// GoString is String, for %#v.
func (p *Provider) GoString() string { return p.name }

// Aliases returns further names by which the provider is found, and under which older identities with the same subjects
// may be stored.
func (p *Provider) Aliases() []string { return p.aliases }

// EmailOptional reports whether a user without any address may sign in.
func (p *Provider) EmailOptional() bool { return p.client.EmailOptional }

// FormPost reports whether the callback is a cross-site POST, with which browsers send only cookies with SameSite=None.
func (p *Provider) FormPost() bool { return p.formPost }

// clientID returns the first client ID; "" without any.
func (p *Provider) clientID() string { return cmp.Or(p.client.ClientIDs...) }

// resolve returns a URL of the row. If the operator has set a base URL, that replaces scheme and host; the path stays.
func (p *Provider) resolve(ref string) string {
	if strings.HasPrefix(ref, "/") {
		return p.base + ref
	}
	if p.client.URL == "" || ref == "" {
		return ref
	}
	u, err := url.Parse(ref)
	if err != nil {
		return ref // a test checks the table's URLs
	}
	return p.base + u.Path
}

// apiURL returns the base URL of profile calls.
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
	Secret   string `json:"s,omitempty"` // and the token's secret
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

// randomText returns 32 random bytes in base64url: 43 characters, the minimum of RFC 7636 section 4.1.
func randomText() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// endpoints are the URLs of a sign-in in a browser, and the client for calls of the token endpoint.
type endpoints struct {
	authorize, token string
	client           *http.Client
	document         *document // the document that has them; nil if the table has them
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
	if p.row.authorize != "" && e.authorize == "" { // the paths of apple and google are known
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

// discovers reports whether the endpoints come from a discovery document, and not from the table.
func (p *Provider) discovers() bool {
	return p.row.authorize == "" || p.discovered && p.client.URL != ""
}
