package provider

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/oauth2"
)

// row describes one provider: what docs/providers.md#providers shows, and more. Paths into a provider's answers are
// member names separated by dots.
type row struct {
	id, mode string
	aliases  []string

	// authorize, token and api are whole URLs, or paths below base. If EXTERNAL_<P>_URL is set, it replaces their
	// scheme and host; the paths stay.
	base, authorize, token, api string
	// apiAt is the path of the API below EXTERNAL_<P>_URL, if it differs from the path in api; "/" stands for no path.
	apiAt string
	// issuer is the issuer of the provider's ID tokens, including native ones; also has other spellings of it.
	issuer string
	also   []string
	// discovered means that EXTERNAL_<P>_URL, if it is set, is an issuer, whose discovery document names the endpoints.
	discovered bool
	oauth1     bool

	scopes []string
	// style is how this daemon authenticates at the token endpoint. It must be set: otherwise package oauth2 would
	// guess it by trying both styles, which could send a code twice.
	style oauth2.AuthStyle
	// pkce is true if PKCE (RFC 7636, S256) is used, which is so for the providers that document it for clients with a
	// secret.
	pkce     bool
	nonce    bool // OpenID Connect: a nonce is sent, and compared with the ID token's
	demanded bool // an ID token without a nonce is refused too
	noScopes bool // scopes of the application are not added
	noParams bool // other parameters of the application are not passed on
	formPost bool // the callback is a POST (response_mode=form_post)

	// profile is the path and query of the first call to the profile endpoint, below api; header has headers of this
	// call.
	profile string
	header  map[string]string
	// sub, email and verified are paths in the answer to this call. verified has one or more paths of flags, one of
	// which must be true for the address to count as verified; instead of paths it may be the constant assumed or
	// unproven.
	sub, email, verified string
	fields               fields // fields of the identity's data
	custom               fields // fields of custom_claims

	begin func(params map[string]string) error // changes or requires parameters of the sign-in page
	// formFields, if set, returns further form fields for the request that exchanges the code.
	formFields func(p *Provider) map[string]string
	// proof, if set, adds to the query and the headers of the call to the profile endpoint.
	proof func(s *signIn, query map[string]string, header http.Header)
	// more, if set, completes the profile d after readProfile has copied the row's fields from the answer me.
	more func(ctx context.Context, s *signIn, me jsonObject, d *Profile) error
	// read, if set, reads the user's profile in this provider's own way. It is called instead of readProfile, which
	// calls the profile endpoint and copies the row's fields from its answer.
	read  func(ctx context.Context, s *signIn) (Profile, error)
	claim func(p *Provider, t *idToken,
		d *Profile) // reads the claims of an ID token; nil: ID tokens are not accepted
	trusts func(p *Provider) trust // returns the trusted issuer; nil: issuer
}

// fields maps names to paths of values in an answer. The value is stored under the name. If the name consists of
// several names, separated by spaces, the value is stored under each.
type fields map[string]string

const (
	// assumed is the value of verified for a provider whose answer has no flag, but which is known to give only
	// verified addresses. EXTERNAL_<P>_DISTRUST_EMAIL overrides this.
	assumed = "(assumed)"
	// unproven is the value of verified for a provider that does not verify addresses.
	unproven = "(unproven)"
)

const (
	basic = oauth2.AuthStyleInHeader
	form  = oauth2.AuthStyleInParams
)

// table has a row for each built-in provider, and a second row for the two that have a legacy mode.
var table = []row{
	{
		id: "apple", authorize: "https://appleid.apple.com/auth/authorize",
		token:  "https://appleid.apple.com/auth/token",
		issuer: "https://appleid.apple.com", also: []string{"https://account.apple.com"}, discovered: true,
		scopes: []string{"email", "name"}, style: form, nonce: true, noScopes: true, noParams: true, formPost: true,
		formFields: appleFormFields, read: appleProfile, claim: appleClaims,
	},
	{
		id: "azure", base: "https://login.microsoftonline.com/common", authorize: "/oauth2/v2.0/authorize",
		token: "/oauth2/v2.0/token", scopes: []string{"openid"}, style: form, pkce: true, nonce: true,
		read: azureProfile, claim: azureClaims, trusts: azureTrust,
	},
	{
		id: "bitbucket", authorize: "https://bitbucket.org/site/oauth2/authorize",
		token: "https://bitbucket.org/site/oauth2/access_token",
		api:   "https://api.bitbucket.org/2.0", profile: "/user",
		scopes: []string{"account", "email"}, style: basic, noScopes: true,
		sub: "uuid", fields: fields{"name full_name": "display_name", "picture avatar_url": "links.avatar.href"},
		more: bitbucketMore,
	},
	{
		id: "discord", authorize: "https://discord.com/api/oauth2/authorize",
		token: "https://discord.com/api/oauth2/token",
		api:   "https://discord.com/api", profile: "/users/@me",
		scopes: []string{"email", "identify"}, style: form,
		sub: "id", email: "email", verified: "verified",
		fields: fields{"full_name": "username"}, custom: fields{"global_name": "global_name"}, more: discordMore,
	},
	{
		id: "facebook", authorize: "https://www.facebook.com/dialog/oauth",
		token: "https://graph.facebook.com/oauth/access_token",
		api:   "https://graph.facebook.com", profile: "/me?fields=email,first_name,last_name,name,picture",
		issuer: "https://www.facebook.com",
		scopes: []string{"email"}, style: form,
		sub: "id", email: "email", verified: assumed, proof: facebookProof,
		fields: fields{"nickname slug": "name", "picture avatar_url": "picture.data.url"}, more: facebookMore,
		claim: facebookClaims,
	},
	{
		id: "figma", authorize: "https://www.figma.com/oauth", token: "https://api.figma.com/v1/oauth/token",
		api: "https://api.figma.com", profile: "/v1/me",
		scopes: []string{"current_user:read"}, style: basic,
		sub: "id", email: "email", verified: assumed,
		fields: fields{"name full_name": "handle", "avatar_url": "img_url"},
	},
	{
		id: "github", authorize: "https://github.com/login/oauth/authorize",
		token: "https://github.com/login/oauth/access_token",
		api:   "https://api.github.com", apiAt: "/api/v3", profile: "/user",
		scopes: []string{"user:email"}, style: form, pkce: true,
		sub: "id", fields: fields{"name full_name": "name", "preferred_username user_name": "login",
			"avatar_url": "avatar_url"}, more: githubMore,
	},
	{
		id: "gitlab", base: "https://gitlab.com", authorize: "/oauth/authorize", token: "/oauth/token",
		profile: "/api/v4/user", scopes: []string{"read_user"}, style: form, pkce: true,
		sub: "id", fields: fields{"name full_name": "name", "picture avatar_url": "avatar_url"}, more: gitlabMore,
	},
	{
		id: "google", authorize: "https://accounts.google.com/o/oauth2/v2/auth",
		token: "https://oauth2.googleapis.com/token",
		api:   "https://www.googleapis.com", profile: "/userinfo/v2/me",
		issuer: "https://accounts.google.com", also: []string{"accounts.google.com"}, discovered: true,
		scopes: []string{"email", "profile"}, style: form, pkce: true, nonce: true,
		read: fromIDTokenOrCall, claim: googleClaims,
		sub: "id", email: "email", verified: "email_verified verified_email",
		fields: fields{"name full_name": "name", "picture avatar_url": "picture"}, custom: fields{"hd": "hd"},
		more: issuedByCall,
	},
	{
		id: "keycloak", authorize: "/protocol/openid-connect/auth", token: "/protocol/openid-connect/token",
		profile: "/protocol/openid-connect/userinfo",
		scopes:  []string{"openid", "profile", "email"}, style: form, pkce: true,
		sub: "sub", email: "email", verified: "email_verified",
		fields: fields{"name full_name": "name"}, more: keycloakMore, claim: standardClaims, trusts: keycloakTrust,
	},
	{
		id: "linkedin", aliases: []string{"linkedin_oidc"},
		authorize: "https://api.linkedin.com/oauth/v2/authorization",
		token:     "https://api.linkedin.com/oauth/v2/accessToken",
		api:       "https://api.linkedin.com", profile: "/v2/userinfo",
		issuer: "https://www.linkedin.com/oauth", scopes: []string{"openid", "email", "profile"}, style: form,
		read: fromIDTokenOrCall, claim: linkedinClaims,
		sub: "sub", more: linkedinUserinfo,
	},
	{
		id: "linkedin", mode: "legacy",
		authorize: "https://api.linkedin.com/oauth/v2/authorization",
		token:     "https://api.linkedin.com/oauth/v2/accessToken",
		api:       "https://api.linkedin.com",
		profile:   "/v2/me?projection=(id,firstName,lastName,profilePicture(displayImage~:playableStreams))",
		scopes:    []string{"r_emailaddress", "r_liteprofile"}, style: form,
		sub: "id", more: linkedinMore,
	},
	{
		id: "notion", authorize: "https://api.notion.com/v1/oauth/authorize",
		token: "https://api.notion.com/v1/oauth/token",
		api:   "https://api.notion.com", profile: "/v1/users/me",
		header: map[string]string{"Notion-Version": "2021-08-16"},
		style:  basic, noScopes: true,
		sub: "bot.owner.user.id", email: "bot.owner.user.person.email", verified: assumed,
		fields: fields{"name full_name": "bot.owner.user.name", "picture avatar_url": "bot.owner.user.avatar_url"},
	},
	{
		id: "slack", aliases: []string{"slack_oidc"},
		authorize: "https://slack.com/openid/connect/authorize", token: "https://slack.com/api/openid.connect.token",
		api: "https://slack.com/api", profile: "/openid.connect.userInfo",
		scopes: []string{"profile", "email", "openid"}, style: form, more: slackMore,
		fields: fields{"name full_name": "name", "picture avatar_url": "picture"},
	},
	{
		id: "slack", mode: "legacy",
		authorize: "https://slack.com/oauth/authorize", token: "https://slack.com/api/oauth.access",
		api: "https://slack.com/api", profile: "/openid.connect.userInfo",
		scopes: []string{"profile", "email", "openid"}, style: form, more: slackMore,
		fields: fields{"name full_name": "name", "picture avatar_url": "picture"},
	},
	{
		id: "snapchat", authorize: "https://accounts.snapchat.com/accounts/oauth2/auth",
		token: "https://accounts.snapchat.com/accounts/oauth2/token",
		api:   "https://kit.snapchat.com", profile: "/v1/me?query=" + snapchatQuery,
		issuer: "https://accounts.snapchat.com/accounts/oauth2/token",
		scopes: []string{"https://auth.snapchat.com/oauth2/api/user.external_id",
			"https://auth.snapchat.com/oauth2/api/user.display_name",
			"https://auth.snapchat.com/oauth2/api/user.bitmoji.avatar"},
		style: form,
		sub:   "data.me.externalId", email: "data.me.email", verified: assumed,
		fields: fields{"name full_name slug": "data.me.displayName", "picture avatar_url": "data.me.bitmoji.avatar"},
		more:   snapchatMore, claim: snapchatClaims,
	},
	{
		id: "spotify", authorize: "https://accounts.spotify.com/authorize",
		token: "https://accounts.spotify.com/api/token",
		api:   "https://api.spotify.com/v1", apiAt: "/", profile: "/me",
		scopes: []string{"user-read-email"}, style: basic,
		sub: "id", email: "email", verified: unproven,
		fields: fields{"name full_name": "display_name"}, more: spotifyMore,
	},
	{
		id: "twitch", authorize: "https://id.twitch.tv/oauth2/authorize", token: "https://id.twitch.tv/oauth2/token",
		api: "https://api.twitch.tv", profile: "/helix/users", proof: twitchProof,
		scopes: []string{"user:read:email"}, style: form,
		sub: "data.0.id", email: "data.0.email", verified: assumed,
		fields: fields{"name full_name": "data.0.login", "nickname slug": "data.0.display_name",
			"picture avatar_url": "data.0.profile_image_url"},
		custom: fields{"broadcaster_type": "data.0.broadcaster_type", "description": "data.0.description",
			"type": "data.0.type", "offline_image_url": "data.0.offline_image_url", "view_count": "data.0.view_count"},
	},
	{
		id: "twitter", authorize: "https://api.twitter.com/oauth/authenticate",
		token: "https://api.twitter.com/oauth/access_token",
		api:   "https://api.twitter.com", profile: "/1.1/account/verify_credentials.json",
		oauth1: true, noScopes: true, noParams: true,
		sub: "id_str", email: "email", verified: assumed,
		fields: fields{"name full_name": "name", "preferred_username user_name": "screen_name",
			"picture avatar_url": "profile_image_url_https"}, more: issuedByCall,
	},
	{
		id: "workos", authorize: "https://api.workos.com/sso/authorize", token: "https://api.workos.com/sso/token",
		api:   "https://api.workos.com",
		style: form, noScopes: true, begin: workosBegin, read: workosProfile,
		sub: "id", email: "email", verified: assumed,
		custom: fields{"connection_id": "connection_id", "organization_id": "organization_id"}, more: workosMore,
	},
}

// Names returns the names of the built-in providers, in alphabetical order.
func Names() []string { return slices.Clone(names()) }

var names = sync.OnceValue(func() (names []string) {
	for _, r := range table {
		if !slices.Contains(names, r.id) {
			names = append(names, r.id)
		}
	}
	return names
})

// Modes returns the values that AUTH_EXTERNAL_<P>_MODE may have, the default first, if the provider has several modes.
func Modes(id string) (modes []string) {
	for _, r := range table {
		switch {
		case r.id != id:
		case r.mode != "":
			modes = append(modes, r.mode)
		case len(r.aliases) > 0:
			modes = append(modes, "oidc")
		}
	}
	return modes
}

func rowOf(id, mode string) row {
	var found row
	for _, r := range table {
		if r.id == id && (found.id == "" || r.mode != "" && strings.EqualFold(r.mode, mode)) {
			found = r
		}
	}
	return found
}

// customRow returns the row of a custom provider: OpenID Connect with a discovery document.
func customRow(c Client) row {
	scopes := c.Scopes
	if len(scopes) == 0 {
		scopes = []string{"openid", "email", "profile"}
	}
	return row{issuer: c.Issuer, scopes: scopes, nonce: true, demanded: !c.SkipNonceCheck, read: customProfile,
		claim: customClaims}
}
