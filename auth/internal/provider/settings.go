package provider

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/httpx"
)

// Settings are the settings of external providers. A zero value stands for the default. Fields without an env tag are
// computed from other settings.
type Settings struct {
	Clients map[string]Client // of built-in providers, by their name in Names; AUTH_EXTERNAL_<P>_*
	// OIDC holds the custom OpenID Connect providers by lower-case name; AUTH_EXTERNAL_OIDC_<NAME>_*.
	OIDC map[string]Client

	// A further audience that native ID tokens of Apple may have: the application's bundle ID.
	IOSBundleID string `env:"AUTH_EXTERNAL_IOS_BUNDLE_ID" table:"External"`
	// Mail domains of the single tenant that AUTH_EXTERNAL_AZURE_URL names. Addresses in them count as verified without
	// the claim xms_edov.
	AzureVerifiedDomains []string `env:"AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS" table:"External"`
	// How long a provider's discovery document is cached.
	DiscoveryTTL time.
			Duration `env:"AUTH_EXTERNAL_OIDC_PROVIDER_CACHE_TTL" envDefault:"1h" min:"1s" table:"External"` // 0: 1 h
	// Time limit of one call to a provider or an SMS gateway.
	Timeout time.Duration `env:"AUTH_INTERNAL_HTTP_TIMEOUT" envDefault:"10s" min:"1ms" table:"External"` // 0: 10 s
	// URLs of providers, SMS gateways and captchas may begin with http:// even if they lead to another host.
	AllowInsecure bool `env:"AUTH_EXTERNAL_ALLOW_INSECURE_URLS" envDefault:"false" table:"External"`

	Log   *slog.Logger   // nil: log lines are discarded
	Watch outbound.Watch // called for each call to a provider; nil: off

	// For tests; nil stands for the real functions.
	Now    func() time.Time
	Public func(netip.Addr) bool // replaces outbound.Public
}

// Client has the settings of one provider.
type Client struct {
	// true: users may sign in with this provider.
	Enabled bool `env:"ENABLED" envDefault:"false"`
	// Required with ENABLED. Client IDs: sign-ins in a browser use the first; native ID tokens may have any of them as
	// audience.
	ClientIDs []string `env:"CLIENT_ID"`
	// Required with ENABLED.
	Secret string `env:"SECRET" secret:"true"`
	// Required with ENABLED. URL to which the provider sends browsers back: /callback below API_EXTERNAL_URL.
	RedirectURI string `env:"REDIRECT_URI"`
	// Base URL instead of the provider's own. Required for keycloak: the URL of the realm.
	URL string `env:"URL"`
	// Users whose provider gives no e-mail address may sign in too.
	EmailOptional bool `env:"EMAIL_OPTIONAL" envDefault:"false"`
	// Native ID tokens need no nonce.
	SkipNonceCheck bool `env:"SKIP_NONCE_CHECK" envDefault:"false"`
	// SECRET and REDIRECT_URI may be missing: without them only native ID tokens sign in, and /authorize answers 400.
	IDTokenOnly bool `env:"ID_TOKEN_ONLY" envDefault:"false"`
	// No address of this provider counts as verified.
	DistrustEmail bool   `env:"DISTRUST_EMAIL" envDefault:"false"`
	Mode          string // of LinkedIn and Slack: oidc (default) or legacy

	// For custom providers only. Their Enabled is AUTH_EXTERNAL_OIDC_<NAME>_ENABLED, which is true by default if ISSUER
	// is set.
	Issuer string
	Scopes []string // replace openid, email and profile
}

// String returns the client IDs, so that the secret is not printed.
func (c Client) String() string { return "client " + strings.Join(c.ClientIDs, ",") }

// GoString is String for %#v, so that the secret is not printed.
func (c Client) GoString() string { return c.String() }

// LogValue is String for loggers, so that the secret is not logged.
func (c Client) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Problem is a wrong or questionable setting. Text continues a sentence that begins with the name of the variable.
type Problem struct {
	Name, Text string
	Warning    bool
}

func (s Settings) withDefaults() Settings {
	if s.DiscoveryTTL <= 0 {
		s.DiscoveryTTL = time.Hour
	}
	if s.Timeout <= 0 {
		s.Timeout = 10 * time.Second
	}
	s.Log = cmp.Or(s.Log, slog.New(slog.DiscardHandler))
	if s.Now == nil {
		s.Now = time.Now
	}
	return s
}

// customName matches the name of a custom provider. Names of variables have it in upper case.
var customName = lazily(`^[a-z][a-z0-9_]{0,31}$`)

// Check returns all errors and warnings together. The settings of a provider that is off are not checked.
func (s Settings) Check() (found []Problem) {
	wrong := func(name, format string, args ...any) {
		found = append(found, Problem{Name: name, Text: fmt.Sprintf(format, args...)})
	}
	warn := func(name, format string, args ...any) {
		found = append(found, Problem{Name: name, Text: fmt.Sprintf(format, args...), Warning: true})
	}
	for id := range s.Clients {
		if !slices.Contains(Names(), id) {
			wrong("AUTH_EXTERNAL_"+strings.ToUpper(id)+"_ENABLED", "is not one of %s", strings.Join(Names(), ", "))
		}
	}
	for _, id := range Names() {
		c := s.Clients[id]
		prefix := "AUTH_EXTERNAL_" + strings.ToUpper(id) + "_"
		if c.Mode != "" && !slices.Contains(Modes(id), strings.ToLower(c.Mode)) {
			if modes := Modes(id); len(modes) > 0 {
				wrong(prefix+"MODE", "is %q, not one of %s", c.Mode, strings.Join(modes, ", "))
			} else {
				wrong(prefix+"MODE", "is for linkedin and slack only")
			}
		}
		if !c.Enabled {
			continue
		}
		c.checkClient(prefix, wrong)
		if c.URL != "" {
			s.checkURL(prefix+"URL", c.URL, wrong, warn)
		}
		switch {
		case id == "keycloak" && c.URL == "":
			wrong(prefix+"URL", "is required: the URL of the realm (unable to find URL for the Keycloak provider)")
		case id == "azure":
			s.checkAzure(prefix, c, wrong)
		case id == "apple" && c.URL == "" && c.Secret != "":
			s.checkApple(prefix, c, warn)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.OIDC)) {
		if s.OIDC[name].Enabled {
			s.checkCustom(name, wrong, warn)
		}
	}
	if s.DiscoveryTTL < 0 {
		wrong("AUTH_EXTERNAL_OIDC_PROVIDER_CACHE_TTL", "is %s, not more than nothing", s.DiscoveryTTL)
	}
	if s.Timeout < 0 {
		wrong("AUTH_INTERNAL_HTTP_TIMEOUT", "is %s, not more than nothing", s.Timeout)
	}
	return found
}

// checkCustom checks the settings of the custom provider name.
func (s Settings) checkCustom(name string, wrong, warn func(name, format string, args ...any)) {
	c, issuer := s.OIDC[name], "AUTH_EXTERNAL_OIDC_"+strings.ToUpper(name)+"_ISSUER"
	if !customName().MatchString(name) {
		wrong(issuer, "has the name %.40q, which is not a letter and up to 31 letters, digits and underscores", name)
	} else if taken(name) {
		wrong(issuer, "has a name that is taken: %s", name)
	}
	if c.Issuer == "" {
		wrong(issuer, "is required")
	} else {
		s.checkURL(issuer, c.Issuer, wrong, warn)
	}
	c.checkClient(strings.TrimSuffix(issuer, "ISSUER"), wrong)
}

// taken reports whether a custom provider cannot have this name, because it has another meaning in identities.
func taken(name string) bool {
	if slices.Contains([]string{"email", "phone", "anonymous", "sso", "web3", "provider"}, name) {
		return true
	}
	return slices.ContainsFunc(table, func(r row) bool { return r.id == name || slices.Contains(r.aliases, name) })
}

func (c Client) checkClient(prefix string, wrong func(name, format string, args ...any)) {
	if len(c.ClientIDs) == 0 || c.ClientIDs[0] == "" {
		wrong(prefix+"CLIENT_ID", "is required, since the provider is enabled")
	}
	if c.IDTokenOnly {
		return
	}
	if c.Secret == "" {
		wrong(prefix+"SECRET",
			"is required, since the provider is enabled (%sID_TOKEN_ONLY=true: not for sign-ins in a browser)", prefix)
	}
	if c.RedirectURI == "" {
		wrong(prefix+"REDIRECT_URI",
			"is required, since the provider is enabled (%sID_TOKEN_ONLY=true: not for sign-ins in a browser)", prefix)
	} else if u, err := url.Parse(c.RedirectURI); err != nil || u.Scheme == "" || u.Host == "" || u.Fragment != "" {
		wrong(prefix+"REDIRECT_URI",
			"is not an absolute URL without fragment, for example https://auth.example.com/callback")
	}
}

// checkURL checks that a URL is absolute, has only a scheme, host and path, and is https unless it leads to this
// machine.
func (s Settings) checkURL(name, text string, wrong, warn func(name, format string, args ...any)) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		wrong(name, "is not an absolute URL that begins with https://")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		wrong(name, "has user, query or fragment; it is a base URL that paths are put behind")
	case u.Scheme == "http" && !httpx.IsLoopbackHost(u.Hostname()) && !s.AllowInsecure:
		wrong(name,
			"begins with http://, which everybody on the way can read and change; https://, or "+
				"AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true")
	case u.Scheme == "http" && !httpx.IsLoopbackHost(u.Hostname()):
		warn(name, "begins with http://: everybody on the way can read and change what the provider says")
	}
}

// checkAzure refuses verified domains if several tenants may sign in: only within one tenant does a domain have one
// owner.
func (s Settings) checkAzure(prefix string, c Client, wrong func(name, format string, args ...any)) {
	tenant, _ := strings.CutPrefix(strings.TrimSuffix(c.URL, "/"), azureHost)
	many := slices.Contains([]string{"", "common", "organizations", "consumers"}, tenant)
	if len(s.AzureVerifiedDomains) > 0 && many {
		wrong(prefix+"VERIFIED_DOMAINS",
			"is only for one tenant: any other could write such addresses into its accounts; %sURL names none", prefix)
	}
}

// checkApple warns if the client secret is not a JWT or expires soon: once it has expired, every sign-in in a browser
// fails.
func (s Settings) checkApple(prefix string, c Client, warn func(name, format string, args ...any)) {
	t, err := token.ParseForeign(c.Secret)
	if err != nil {
		warn(prefix+"SECRET", "is no JWT: Apple takes only one that was made with its key")
		return
	}
	end := time.Unix(t.ExpiresAt, 0).UTC()
	left := end.Sub(s.withDefaults().Now())
	switch {
	case left <= 0:
		warn(prefix+"SECRET", "has expired at %s: Apple refuses it; make another", end.Format(time.RFC3339))
	case left < 14*24*time.Hour:
		warn(prefix+"SECRET", "expires at %s: make another before", end.Format(time.RFC3339))
	}
}

// Overrides returns lines for the log at the start about enabled providers whose base URL the operator has replaced.
func (s Settings) Overrides() (lines []string) {
	for _, id := range Names() {
		if c := s.Clients[id]; c.Enabled && c.URL != "" {
			lines = append(lines, id+" at "+c.URL)
		}
	}
	return lines
}
