package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"gatehouse/auth/internal/provider"
	"gatehouse/shared/settings"
)

// externalConfig has the settings of sign-in by external providers.
type externalConfig struct {
	// The built-in providers (docs/providers.md#providers).
	Apple     provider.Client `envPrefix:"AUTH_EXTERNAL_APPLE_"`
	Azure     provider.Client `envPrefix:"AUTH_EXTERNAL_AZURE_"`
	Bitbucket provider.Client `envPrefix:"AUTH_EXTERNAL_BITBUCKET_"`
	Discord   provider.Client `envPrefix:"AUTH_EXTERNAL_DISCORD_"`
	Facebook  provider.Client `envPrefix:"AUTH_EXTERNAL_FACEBOOK_"`
	Figma     provider.Client `envPrefix:"AUTH_EXTERNAL_FIGMA_"`
	GitHub    provider.Client `envPrefix:"AUTH_EXTERNAL_GITHUB_"`
	GitLab    provider.Client `envPrefix:"AUTH_EXTERNAL_GITLAB_"`
	Google    provider.Client `envPrefix:"AUTH_EXTERNAL_GOOGLE_"`
	Keycloak  provider.Client `envPrefix:"AUTH_EXTERNAL_KEYCLOAK_"`
	LinkedIn  provider.Client `envPrefix:"AUTH_EXTERNAL_LINKEDIN_"`
	Notion    provider.Client `envPrefix:"AUTH_EXTERNAL_NOTION_"`
	Slack     provider.Client `envPrefix:"AUTH_EXTERNAL_SLACK_"`
	Snapchat  provider.Client `envPrefix:"AUTH_EXTERNAL_SNAPCHAT_"`
	Spotify   provider.Client `envPrefix:"AUTH_EXTERNAL_SPOTIFY_"`
	Twitch    provider.Client `envPrefix:"AUTH_EXTERNAL_TWITCH_"`
	Twitter   provider.Client `envPrefix:"AUTH_EXTERNAL_TWITTER_"`
	WorkOS    provider.Client `envPrefix:"AUTH_EXTERNAL_WORKOS_"`

	// oidc: OpenID Connect. legacy: the older APIs, which are closed to new applications.
	LinkedInMode string `env:"AUTH_EXTERNAL_LINKEDIN_MODE" envDefault:"oidc" oneof:"oidc legacy" fold:"true"`
	// The same as `AUTH_EXTERNAL_LINKEDIN_MODE`, for Slack.
	SlackMode string `env:"AUTH_EXTERNAL_SLACK_MODE" envDefault:"oidc" oneof:"oidc legacy" fold:"true"`

	// Custom are further OpenID Connect providers by lower-case name, AUTH_EXTERNAL_OIDC_<NAME>_*.
	Custom map[string]customConfig
}

// customConfig has the settings of a custom provider, which speaks OpenID Connect. NAME stands for its name.
type customConfig struct {
	// Required. The provider's issuer, exactly as in its discovery document (some end in a slash), which is fetched
	// from a URL below it. Setting it adds the provider.
	Issuer string `env:"AUTH_EXTERNAL_OIDC_NAME_ISSUER"`
	// false: the provider is off.
	Enabled bool `env:"AUTH_EXTERNAL_OIDC_NAME_ENABLED" envDefault:"true"`
	// The same as `AUTH_EXTERNAL_<P>_CLIENT_ID` of a built-in provider.
	ClientID []string `env:"AUTH_EXTERNAL_OIDC_NAME_CLIENT_ID"`
	// The same as `AUTH_EXTERNAL_<P>_SECRET`.
	Secret string `env:"AUTH_EXTERNAL_OIDC_NAME_SECRET" secret:"true"`
	// The same as `AUTH_EXTERNAL_<P>_REDIRECT_URI`.
	RedirectURI string `env:"AUTH_EXTERNAL_OIDC_NAME_REDIRECT_URI"`
	// Scopes that are requested.
	Scopes []string `env:"AUTH_EXTERNAL_OIDC_NAME_SCOPES" envDefault:"openid,email,profile"`
	// The same as `AUTH_EXTERNAL_<P>_EMAIL_OPTIONAL`.
	EmailOptional bool `env:"AUTH_EXTERNAL_OIDC_NAME_EMAIL_OPTIONAL" envDefault:"false"`
	// The same as `AUTH_EXTERNAL_<P>_SKIP_NONCE_CHECK`. In addition, ID tokens of sign-ins in a browser need no nonce.
	SkipNonceCheck bool `env:"AUTH_EXTERNAL_OIDC_NAME_SKIP_NONCE_CHECK" envDefault:"false"`
	// The same as `AUTH_EXTERNAL_<P>_ID_TOKEN_ONLY`.
	IDTokenOnly bool `env:"AUTH_EXTERNAL_OIDC_NAME_ID_TOKEN_ONLY" envDefault:"false"`
	// The same as `AUTH_EXTERNAL_<P>_DISTRUST_EMAIL`.
	DistrustEmail bool `env:"AUTH_EXTERNAL_OIDC_NAME_DISTRUST_EMAIL" envDefault:"false"`
}

func (c customConfig) client() provider.Client {
	return provider.Client{
		Enabled: c.Enabled, ClientIDs: c.ClientID, Secret: c.Secret, RedirectURI: c.RedirectURI,
		EmailOptional:  c.EmailOptional,
		SkipNonceCheck: c.SkipNonceCheck, IDTokenOnly: c.IDTokenOnly, DistrustEmail: c.DistrustEmail, Issuer: c.Issuer,
		Scopes: c.Scopes,
	}
}

const customPrefix = "AUTH_EXTERNAL_OIDC_"

// readCustom finds the custom providers among the variables. The operator chooses their names, so no struct has fields
// for them. Each provider is read as if it were called NAME, and its errors are reported with its real name.
func (c *externalConfig) readCustom(r *settings.Report) {
	fields, err := settings.Fields(new(customConfig))
	if err != nil {
		panic(err) // only a bug in the struct can make it fail
	}
	environs := map[string][]string{}
	for _, name := range r.Names() {
		rest, ok := strings.CutPrefix(name, customPrefix)
		if !ok || name == customPrefix+"PROVIDER_CACHE_TTL" {
			continue
		}
		found := false
		for _, f := range fields {
			suffix := strings.TrimPrefix(f.Name, customPrefix+"NAME")
			for _, s := range []string{suffix, suffix + "_FILE"} {
				if who, ok := strings.CutSuffix(rest, s); ok && who != "" && !found && (s == suffix || f.Secret) {
					found = true
					environs[who] = append(environs[who], customPrefix+"NAME"+s+"="+r.Text(name))
				}
			}
		}
		if !found {
			r.Warn("%s is no setting of this program and has no effect", name)
		}
	}
	for who, environ := range environs {
		var f customConfig
		one := settings.Load(&f, environ, settings.Options{Seconds: true})
		for _, m := range one.Mistakes {
			r.Clash("%s", strings.ReplaceAll(m, customPrefix+"NAME_", customPrefix+who+"_"))
		}
		if c.Custom == nil {
			c.Custom = map[string]customConfig{}
		}
		c.Custom[strings.ToLower(who)] = f
	}
}

// providerSettings returns the settings of package provider, and reports errors in them.
func (c *Config) providerSettings(r *settings.Report) provider.Settings {
	s, x := c.Providers, &c.External
	s.Clients, s.OIDC = x.clients(), map[string]provider.Client{}
	for name, f := range x.Custom {
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

// clients returns the settings of the built-in providers by name, which is the field's name in lower case.
func (c *externalConfig) clients() map[string]provider.Client {
	clients := map[string]provider.Client{}
	for field, v := range reflect.ValueOf(c).Elem().Fields() {
		if client, ok := v.Interface().(provider.Client); ok {
			clients[strings.ToLower(field.Name)] = client
		}
	}
	for name, mode := range map[string]string{"linkedin": c.LinkedInMode, "slack": c.SlackMode} {
		if mode != "legacy" { // the field's tag allows no further mode
			mode = "oidc"
		}
		client := clients[name]
		client.Mode = mode
		clients[name] = client
	}
	return clients
}

// enabledProviders returns the names of the providers that GET /settings shows as on: first built-in, then custom ones.
func enabledProviders(s provider.Settings) (names []string) {
	for _, name := range provider.Names() {
		if s.Clients[name].Enabled {
			names = append(names, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.OIDC)) {
		if s.OIDC[name].Enabled {
			names = append(names, name)
		}
	}
	return names
}

// checkExternal makes the checks of providers that neither a field's tag nor package provider makes.
func (c *Config) checkExternal(r *settings.Report) {
	c.External.readCustom(r)
	warnUnsupportedProviders(r)
	if c.Accounts.External.AllowUnverified && c.Accounts.Email.Autoconfirm {
		r.Clash("AUTH_MAILER_AUTOCONFIRM and AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS cannot both be true")
	}
	if c.Accounts.External.ManualLinking && !c.Accounts.External.LinkingPKCE {
		r.Warn("AUTH_SECURITY_LINKING_REQUIRE_PKCE=false: an attacker who gets a user to open a link of linkIdentity " +
			"attaches that user's identity to the attacker's account")
	}
}

// warnAutoconfirm warns if autoconfirm is on together with providers: anyone could sign up with another person's
// address, and have a usable account before the owner of the address signs in by a provider.
func (l *Live) warnAutoconfirm(r *settings.Report) {
	s, name := &l.Accounts, "AUTH_MAILER_AUTOCONFIRM"
	byMail, bySMS := s.Email.Enabled && s.Email.Autoconfirm, s.Phone.Enabled && s.Phone.Autoconfirm
	if !byMail {
		name = "AUTH_SMS_AUTOCONFIRM"
	}
	if !s.DisableSignup && (byMail || bySMS) && len(l.API.External) > 0 {
		r.Warn("%s=true with open sign-up and a provider: anybody can sign up with an address of another person; "+
			"its first proof ends the account's password and sessions unless AUTH_SECURITY_CLAIM_UNPROVEN=false, "+
			"where the two share the account", name)
	}
}

// warnCookies warns of callback URLs at another host than API_EXTERNAL_URL. A cookie is sent only to the host that set
// it, so a browser that begins a sign-in at one host and returns to another is not recognized.
func (c *Config) warnCookies(r *settings.Report, s provider.Settings) {
	ours, err := url.Parse(c.API.ExternalURL)
	if err != nil || !c.Accounts.External.StateCookie {
		return
	}
	var elsewhere []string
	look := func(setting string, p provider.Client) {
		u, err := url.Parse(p.RedirectURI)
		if err != nil || !p.Enabled || p.IDTokenOnly || p.RedirectURI == "" ||
			strings.EqualFold(u.Hostname(), ours.Hostname()) {
			return
		}
		elsewhere = append(elsewhere, fmt.Sprintf("%s leads to %s", setting, cmp.Or(u.Hostname(), p.RedirectURI)))
	}
	for _, name := range provider.Names() {
		look("AUTH_EXTERNAL_"+strings.ToUpper(name)+"_REDIRECT_URI", s.Clients[name])
	}
	for _, name := range enabledProviders(provider.Settings{OIDC: s.OIDC}) {
		look(customPrefix+strings.ToUpper(name)+"_REDIRECT_URI", s.OIDC[name])
	}
	if len(elsewhere) > 0 {
		both := "both"
		if len(elsewhere) > 1 {
			both = "all"
		}
		r.Warn("%s, and AUTH_API_EXTERNAL_URL is at %s: a browser brings the cookie that it got at one host to no "+
			"other, and every sign-in fails; "+
			"give %s the same host, or set AUTH_EXTERNAL_STATE_COOKIE=false", strings.Join(elsewhere, ", "),
			ours.Hostname(), both)
	}
}
