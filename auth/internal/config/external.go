package config

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/settings"
)

// externalConfig is sign-in by external providers.
type externalConfig struct {
	// A browser that is sent to a provider is marked by a cookie and has to bring it back; false: for clients that keep no cookies.
	StateCookie bool `env:"AUTH_EXTERNAL_STATE_COOKIE" envDefault:"true"`
	// An ID token signs in once.
	IDTokenOnce bool `env:"AUTH_EXTERNAL_ID_TOKEN_SINGLE_USE" envDefault:"true"`
	// Users may sign in before they confirm an address that the provider has not verified; not together with MAILER_AUTOCONFIRM.
	AllowUnverified bool `env:"AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS" envDefault:"false"`
	// Users may link further identities to their accounts, and unlink them.
	ManualLinking bool `env:"AUTH_SECURITY_MANUAL_LINKING_ENABLED" envDefault:"false"`
	// Users with a verified factor link and unlink identities in a session of aal2 only.
	LinkingAAL2 bool `env:"AUTH_SECURITY_LINKING_REQUIRE_AAL2" envDefault:"true"`
	// Identities are linked by PKCE only, so that the link of one user opened by another links nothing.
	LinkingPKCE bool `env:"AUTH_SECURITY_LINKING_REQUIRE_PKCE" envDefault:"true"`
	// A further audience of native ID tokens of Apple: the application's bundle id.
	IOSBundleID string `env:"AUTH_EXTERNAL_IOS_BUNDLE_ID"`
	// Mail domains of the one tenant that AUTH_EXTERNAL_AZURE_URL names, whose addresses count as verified without the claim xms_edov.
	AzureDomains []string `env:"AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS"`
	// How long a provider's discovery document is cached.
	DiscoveryTTL time.Duration `env:"AUTH_EXTERNAL_OIDC_PROVIDER_CACHE_TTL" envDefault:"1h" min:"1s"`
	// Time for one call of a provider or an SMS gateway.
	Timeout time.Duration `env:"AUTH_INTERNAL_HTTP_TIMEOUT" envDefault:"10s" min:"1ms"`
	// URLs of providers, SMS gateways and captchas may begin with http:// for other hosts than this one.
	AllowInsecure bool `env:"AUTH_EXTERNAL_ALLOW_INSECURE_URLS" envDefault:"false"`

	// The eighteen of docs/providers.md#providers.
	Apple     clientConfig `envPrefix:"AUTH_EXTERNAL_APPLE_"`
	Azure     clientConfig `envPrefix:"AUTH_EXTERNAL_AZURE_"`
	Bitbucket clientConfig `envPrefix:"AUTH_EXTERNAL_BITBUCKET_"`
	Discord   clientConfig `envPrefix:"AUTH_EXTERNAL_DISCORD_"`
	Facebook  clientConfig `envPrefix:"AUTH_EXTERNAL_FACEBOOK_"`
	Figma     clientConfig `envPrefix:"AUTH_EXTERNAL_FIGMA_"`
	GitHub    clientConfig `envPrefix:"AUTH_EXTERNAL_GITHUB_"`
	GitLab    clientConfig `envPrefix:"AUTH_EXTERNAL_GITLAB_"`
	Google    clientConfig `envPrefix:"AUTH_EXTERNAL_GOOGLE_"`
	Keycloak  clientConfig `envPrefix:"AUTH_EXTERNAL_KEYCLOAK_"`
	LinkedIn  clientConfig `envPrefix:"AUTH_EXTERNAL_LINKEDIN_"`
	Notion    clientConfig `envPrefix:"AUTH_EXTERNAL_NOTION_"`
	Slack     clientConfig `envPrefix:"AUTH_EXTERNAL_SLACK_"`
	Snapchat  clientConfig `envPrefix:"AUTH_EXTERNAL_SNAPCHAT_"`
	Spotify   clientConfig `envPrefix:"AUTH_EXTERNAL_SPOTIFY_"`
	Twitch    clientConfig `envPrefix:"AUTH_EXTERNAL_TWITCH_"`
	Twitter   clientConfig `envPrefix:"AUTH_EXTERNAL_TWITTER_"`
	WorkOS    clientConfig `envPrefix:"AUTH_EXTERNAL_WORKOS_"`

	// oidc: OpenID Connect. legacy: the interfaces of before, which new applications don't get any more.
	LinkedInMode string `env:"AUTH_EXTERNAL_LINKEDIN_MODE" envDefault:"oidc" oneof:"oidc legacy" fold:"true"`
	// The same.
	SlackMode string `env:"AUTH_EXTERNAL_SLACK_MODE" envDefault:"oidc" oneof:"oidc legacy" fold:"true"`

	// Free are further OpenID Connect providers by lower-case name, AUTH_EXTERNAL_OIDC_<NAME>_*.
	Free map[string]freeConfig
}

// clientConfig is what the operator has agreed on with one provider.
type clientConfig struct {
	// Sign-in with this provider.
	Enabled bool `env:"ENABLED" envDefault:"false"`
	// Required with ENABLED. Client ids: the first for browsers, each as an audience of native ID tokens.
	ClientID []string `env:"CLIENT_ID"`
	// Required likewise.
	Secret string `env:"SECRET" secret:"true"`
	// Required likewise. Where the provider sends browsers back to: /callback below API_EXTERNAL_URL.
	RedirectURI string `env:"REDIRECT_URI"`
	// Base URL in the place of the provider's own; keycloak: required, the realm's.
	URL string `env:"URL"`
	// Users without an address at the provider may sign in too.
	EmailOptional bool `env:"EMAIL_OPTIONAL" envDefault:"false"`
	// Native ID tokens need no nonce.
	SkipNonceCheck bool `env:"SKIP_NONCE_CHECK" envDefault:"false"`
	// SECRET and REDIRECT_URI may be missing: without them only native ID tokens sign in, and /authorize answers 400.
	IDTokenOnly bool `env:"ID_TOKEN_ONLY" envDefault:"false"`
	// No address of this provider counts as verified.
	DistrustEmail bool `env:"DISTRUST_EMAIL" envDefault:"false"`
}

func (c clientConfig) client(mode string) provider.Client {
	return provider.Client{
		Enabled: c.Enabled, ClientIDs: c.ClientID, Secret: c.Secret, RedirectURI: c.RedirectURI, URL: c.URL,
		EmailOptional:  c.EmailOptional,
		SkipNonceCheck: c.SkipNonceCheck, IDTokenOnly: c.IDTokenOnly, DistrustEmail: c.DistrustEmail, Mode: mode,
	}
}

// freeConfig is an OpenID Connect provider that needs no code of ours. NAME stands for its name.
type freeConfig struct {
	// Required. Its issuer, below which its discovery document lies, letter by letter as that document has it (some end in a slash). Setting it adds the provider.
	Issuer string `env:"AUTH_EXTERNAL_OIDC_NAME_ISSUER"`
	// false: it is off.
	Enabled bool `env:"AUTH_EXTERNAL_OIDC_NAME_ENABLED" envDefault:"true"`
	// As of the eighteen.
	ClientID []string `env:"AUTH_EXTERNAL_OIDC_NAME_CLIENT_ID"`
	// As of the eighteen.
	Secret string `env:"AUTH_EXTERNAL_OIDC_NAME_SECRET" secret:"true"`
	// As of the eighteen.
	RedirectURI string `env:"AUTH_EXTERNAL_OIDC_NAME_REDIRECT_URI"`
	// Scopes that are requested.
	Scopes []string `env:"AUTH_EXTERNAL_OIDC_NAME_SCOPES" envDefault:"openid,email,profile"`
	// As of the eighteen.
	EmailOptional bool `env:"AUTH_EXTERNAL_OIDC_NAME_EMAIL_OPTIONAL" envDefault:"false"`
	// As of the eighteen; and ID tokens that browsers bring may have none.
	SkipNonceCheck bool `env:"AUTH_EXTERNAL_OIDC_NAME_SKIP_NONCE_CHECK" envDefault:"false"`
	// As of the eighteen.
	IDTokenOnly bool `env:"AUTH_EXTERNAL_OIDC_NAME_ID_TOKEN_ONLY" envDefault:"false"`
	// As of the eighteen.
	DistrustEmail bool `env:"AUTH_EXTERNAL_OIDC_NAME_DISTRUST_EMAIL" envDefault:"false"`
}

func (c freeConfig) client() provider.Client {
	return provider.Client{
		Enabled: c.Enabled, ClientIDs: c.ClientID, Secret: c.Secret, RedirectURI: c.RedirectURI,
		EmailOptional:  c.EmailOptional,
		SkipNonceCheck: c.SkipNonceCheck, IDTokenOnly: c.IDTokenOnly, DistrustEmail: c.DistrustEmail, Issuer: c.Issuer,
		Scopes: c.Scopes,
	}
}

const freePrefix = "AUTH_EXTERNAL_OIDC_"

// readFree finds the free providers among the variables: their names are the operator's choice, so that no struct has
// them. Each is read as the one called NAME, and its errors are reported under its own.
func (c *externalConfig) readFree(r *settings.Report) {
	fields, err := settings.Fields(new(freeConfig))
	if err != nil {
		panic(err) // a bug in the struct
	}
	environs := map[string][]string{}
	for _, name := range r.Names() {
		rest, ok := strings.CutPrefix(name, freePrefix)
		if !ok || name == freePrefix+"PROVIDER_CACHE_TTL" {
			continue
		}
		found := false
		for _, f := range fields {
			suffix := strings.TrimPrefix(f.Name, freePrefix+"NAME")
			for _, s := range []string{suffix, suffix + "_FILE"} {
				if who, ok := strings.CutSuffix(rest, s); ok && who != "" && !found && (s == suffix || f.Secret) {
					found = true
					environs[who] = append(environs[who], freePrefix+"NAME"+s+"="+r.Text(name))
				}
			}
		}
		if !found {
			r.Warn("%s is no setting of this program and has no effect", name)
		}
	}
	for who, environ := range environs {
		var f freeConfig
		one := settings.Load(&f, environ, settings.Options{Seconds: true})
		for _, m := range one.Mistakes {
			r.Clash("%s", strings.ReplaceAll(m, freePrefix+"NAME_", freePrefix+who+"_"))
		}
		if c.Free == nil {
			c.Free = map[string]freeConfig{}
		}
		c.Free[strings.ToLower(who)] = f
	}
}

// providerSettings are the settings of package provider; what it finds wrong with them is reported.
func (c *externalConfig) providerSettings(r *settings.Report) provider.Settings {
	s := provider.Settings{
		Clients: map[string]provider.Client{
			"apple": c.Apple.client(""), "azure": c.Azure.client(""), "bitbucket": c.Bitbucket.client(""),
			"discord":  c.Discord.client(""),
			"facebook": c.Facebook.client(""), "figma": c.Figma.client(""), "github": c.GitHub.client(""),
			"gitlab": c.GitLab.client(""),
			"google": c.Google.client(""), "keycloak": c.Keycloak.client(""),
			"linkedin": c.LinkedIn.client(modeOf(c.LinkedInMode)), "notion": c.Notion.client(""),
			"slack": c.Slack.client(modeOf(c.SlackMode)), "snapchat": c.Snapchat.client(""), "spotify": c.Spotify.client(""),
			"twitch": c.Twitch.client(""), "twitter": c.Twitter.client(""), "workos": c.WorkOS.client(""),
		},
		OIDC:        map[string]provider.Client{},
		IOSBundleID: c.IOSBundleID, AzureVerifiedDomains: c.AzureDomains, DiscoveryTTL: c.DiscoveryTTL, Timeout: c.Timeout,
		AllowInsecure: c.AllowInsecure,
	}
	for name, f := range c.Free {
		s.OIDC[name] = f.client()
	}
	for _, p := range s.Check() {
		if p.Warning {
			r.Warn("%s %s", p.Name, p.Text)
		} else {
			r.Clash("%s %s", p.Name, p.Text)
		}
	}
	return s
}

// modeOf keeps a mode that its tag has refused from being refused twice.
func modeOf(mode string) string {
	if mode != "legacy" {
		return "oidc"
	}
	return mode
}

// enabledProviders are the names that GET /settings shows as on: of the eighteen first, then the free ones.
func enabledProviders(s provider.Settings) (names []string) {
	for _, name := range provider.Names() {
		if s.Clients[name].Enabled {
			names = append(names, name)
		}
	}
	var free []string
	for name, c := range s.OIDC {
		if c.Enabled {
			free = append(free, name)
		}
	}
	slices.Sort(free)
	return append(names, free...)
}

// checkExternal is what neither a field's tag nor package provider can say.
func (c *Config) checkExternal(r *settings.Report) {
	c.External.readFree(r)
	warnUnsupportedProviders(r)
	if c.External.AllowUnverified && c.Mailer.Autoconfirm {
		r.Clash("AUTH_MAILER_AUTOCONFIRM and AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS cannot both be true")
	}
	if c.External.ManualLinking && !c.External.LinkingPKCE {
		r.Warn("AUTH_SECURITY_LINKING_REQUIRE_PKCE=false: an attacker who gets a user to open a link of linkIdentity attaches that user's identity to the attacker's account")
	}
}

// warnCookies: a cookie is only sent to the host that set it. A browser that begins at one host and comes back to
// another counts as another browser.
func (c *Config) warnCookies(r *settings.Report, s provider.Settings) {
	ours, err := url.Parse(c.API.ExternalURL)
	if err != nil || !c.External.StateCookie {
		return
	}
	warn := func(setting string, p provider.Client) {
		u, err := url.Parse(p.RedirectURI)
		if err != nil || !p.Enabled || p.IDTokenOnly || p.RedirectURI == "" ||
			strings.EqualFold(u.Hostname(), ours.Hostname()) {
			return
		}
		r.Warn("%s leads to %s, and AUTH_API_EXTERNAL_URL is at %s: a browser brings the cookie that it got at one host to no other, and every sign-in fails; "+
			"give both the same host, or set AUTH_EXTERNAL_STATE_COOKIE=false", setting, cmp.Or(u.Hostname(), p.RedirectURI),
			ours.Hostname())
	}
	for _, name := range provider.Names() {
		warn("AUTH_EXTERNAL_"+strings.ToUpper(name)+"_REDIRECT_URI", s.Clients[name])
	}
	for _, name := range enabledProviders(provider.Settings{OIDC: s.OIDC}) {
		warn(freePrefix+strings.ToUpper(name)+"_REDIRECT_URI", s.OIDC[name])
	}
}

// externalSettings are those of the flows. The providers themselves are made where they run.
func (c *Config) externalSettings() account.ExternalSettings {
	return account.ExternalSettings{
		StateCookie: c.External.StateCookie, IDTokenOnce: c.External.IDTokenOnce, AllowUnverified: c.External.AllowUnverified,
		ManualLinking: c.External.ManualLinking, LinkingAAL2: c.External.LinkingAAL2, LinkingPKCE: c.External.LinkingPKCE,
	}
}
