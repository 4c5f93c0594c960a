package fakeidp

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// dialect describes the protocol of one provider: the paths of its endpoints, and the contents of its responses.
type dialect struct {
	authorize, token []string // paths of the endpoints; a second path is that of a second variant of the protocol
	basic            bool     // clients authenticate with HTTP Basic, not in the form
	pkce             bool     // a PKCE challenge with method S256 is required
	// issuer is the issuer's path below the dialect's base URL; discovery and keys are the paths of the discovery
	// document and the key set. All are "" if there are no ID tokens.
	issuer          string
	discovery, keys string
	algs            []string
	// idToken reports whether the code of a grant gets an ID token; nil means always.
	idToken func(g *grant) bool
	claims  func(u User, c map[string]any) // adds to the standard claims of ID tokens
	sendIss bool                           // the response with the code has the parameter iss (RFC 9207)

	pages map[string]func(x *exchange, u User) any // by path: profile endpoints, which return JSON
	more  func(x *exchange, u User, answer map[string]any)
	check func(x *exchange) string // returns the error in an authorize request; "" if there is none
}

func number(id string) json.Number { return json.Number(id) }

func withExtra(u User, o map[string]any) map[string]any {
	for name, v := range u.Extra {
		o[name] = v
	}
	return o
}

func openID(g *grant) bool {
	for _, s := range g.scopes {
		if s == "openid" {
			return true
		}
	}
	return false
}

// wellKnown is the path of the discovery document below the issuer.
const wellKnown = "/.well-known/openid-configuration"

var dialects = map[string]dialect{
	"apple": {
		authorize: []string{"/auth/authorize"}, token: []string{"/auth/token"}, discovery: wellKnown,
		keys: "/auth/keys",
		algs: []string{"RS256"},
		claims: func(u User, c map[string]any) {
			c["is_private_email"] = "true"
			c["auth_time"] = time.Now().Unix()
			delete(c, "name") // the name is only sent through the browser, not in the ID token
			delete(c, "picture")
		},
		check: func(x *exchange) string {
			if q := x.r.URL.Query(); q.Get("response_mode") != "form_post" || q.Get("scope") != "email name" {
				return "response_mode is not form_post, or scope not email name"
			}
			return ""
		},
	},
	"azure": {
		authorize: []string{"/oauth2/v2.0/authorize"}, token: []string{"/oauth2/v2.0/token"}, pkce: true,
		issuer: "/v2.0", discovery: "/v2.0" + wellKnown, keys: "/discovery/v2.0/keys", algs: []string{"RS256"},
		claims: func(u User, c map[string]any) {
			c["preferred_username"] = u.Login
			c["tid"] = "0f0e0d0c-0000-4000-8000-000000000001"
			c["ver"] = "2.0"
			delete(c, "email_verified")
			delete(c, "picture")
		},
	},
	"bitbucket": {
		authorize: []string{"/site/oauth2/authorize"}, token: []string{"/site/oauth2/access_token"}, basic: true,
		pages: map[string]func(*exchange, User) any{
			"/2.0/user": func(x *exchange, u User) any {
				return withExtra(u, map[string]any{"uuid": "{" + u.ID + "}", "display_name": u.Name,
					"links": map[string]any{"avatar": map[string]any{"href": u.Picture}}})
			},
			"/2.0/user/emails": func(x *exchange, u User) any {
				list := []any{}
				for _, e := range u.emails() {
					list = append(list, map[string]any{"email": e.Address, "is_confirmed": e.Verified,
						"is_primary": e.Primary})
				}
				return map[string]any{"values": list}
			},
		},
	},
	"discord": {
		authorize: []string{"/api/oauth2/authorize"}, token: []string{"/api/oauth2/token"},
		pages: map[string]func(*exchange, User) any{"/api/users/@me": func(x *exchange, u User) any {
			return withExtra(u, map[string]any{"id": u.ID, "username": u.Login, "discriminator": "0",
				"global_name": u.Name,
				"avatar":      "a_0f0f", "email": u.Email, "verified": u.Verified})
		}},
	},
	"facebook": {
		authorize: []string{"/dialog/oauth"}, token: []string{"/oauth/access_token"},
		discovery: wellKnown, keys: "/.well-known/oauth/openid/jwks/", algs: []string{"RS256"},
		idToken: func(*grant) bool { return false },
		pages: map[string]func(*exchange, User) any{"/me": func(x *exchange, u User) any {
			if got := x.r.URL.Query().Get("appsecret_proof"); got != proof(x.bearer()) ||
				x.r.URL.Query().Get("fields") != "email,first_name,last_name,name,picture" {
				return x.refuse("fields or appsecret_proof is wrong")
			}
			o := map[string]any{"id": u.ID, "first_name": u.GivenName, "last_name": u.FamilyName, "name": u.Name,
				"picture": map[string]any{"data": map[string]any{"url": u.Picture}}}
			if u.Email != "" && u.Verified {
				o["email"] = u.Email
			}
			return withExtra(u, o)
		}},
	},
	"figma": {
		authorize: []string{"/oauth"}, token: []string{"/v1/oauth/token"}, basic: true,
		pages: map[string]func(*exchange, User) any{"/v1/me": func(x *exchange, u User) any {
			return withExtra(u, map[string]any{"id": u.ID, "email": u.Email, "handle": u.Name, "img_url": u.Picture})
		}},
	},
	"github": {
		authorize: []string{"/login/oauth/authorize"}, token: []string{"/login/oauth/access_token"}, pkce: true,
		pages: map[string]func(*exchange, User) any{
			"/api/v3/user": func(x *exchange, u User) any {
				return withExtra(u, map[string]any{"id": number(u.ID), "login": u.Login, "name": u.Name,
					"avatar_url": u.Picture,
					"email":      "shown@to-everybody.example"})
			},
			"/api/v3/user/emails": func(x *exchange, u User) any {
				list := []any{}
				for _, e := range u.emails() {
					list = append(list, map[string]any{"email": e.Address, "verified": e.Verified, "primary": e.Primary,
						"visibility": nil})
				}
				return list
			},
		},
	},
	"gitlab": {
		authorize: []string{"/oauth/authorize"}, token: []string{"/oauth/token"}, pkce: true,
		pages: map[string]func(*exchange, User) any{
			"/api/v4/user": func(x *exchange, u User) any {
				o := map[string]any{"id": number(u.ID), "username": u.Login, "name": u.Name, "avatar_url": u.Picture,
					"email": u.Email, "confirmed_at": nil}
				if u.Verified {
					o["confirmed_at"] = "2012-05-23T09:05:22Z"
				}
				return withExtra(u, o)
			},
			"/api/v4/user/emails": func(x *exchange, u User) any {
				list := []any{}
				for i, e := range u.emails() {
					if !e.Primary {
						list = append(list,
							map[string]any{"id": i + 1, "email": e.Address, "confirmed_at": "2021-03-26T19:07:56.248Z"})
					}
				}
				return list
			},
		},
	},
	"google": {
		authorize: []string{"/o/oauth2/v2/auth"}, token: []string{"/token"}, pkce: true, discovery: wellKnown,
		keys: "/keys",
		algs: []string{"RS256"},
		pages: map[string]func(*exchange, User) any{"/userinfo/v2/me": func(x *exchange, u User) any {
			return withExtra(u, map[string]any{"id": u.ID, "name": u.Name, "picture": u.Picture, "email": u.Email,
				"verified_email": u.Verified})
		}},
	},
	"keycloak": {
		authorize: []string{"/protocol/openid-connect/auth"}, token: []string{"/protocol/openid-connect/token"},
		pkce:      true,
		discovery: wellKnown, keys: "/protocol/openid-connect/certs", idToken: openID, sendIss: true,
		algs: []string{"RS256"},
		pages: map[string]func(*exchange, User) any{"/protocol/openid-connect/userinfo": func(x *exchange, u User) any {
			if !openID(x.grant) {
				return x.refuse("the scope openid is missing")
			}
			return withExtra(u, map[string]any{"sub": u.ID, "name": u.Name, "email": u.Email,
				"email_verified":     u.Verified,
				"preferred_username": u.Login})
		}},
	},
	"linkedin": {
		authorize: []string{"/oauth/v2/authorization"}, token: []string{"/oauth/v2/accessToken"},
		issuer: "/oauth", discovery: "/oauth" + wellKnown, keys: "/oauth/openid/jwks", idToken: openID,
		algs: []string{"RS256"},
		claims: func(u User, c map[string]any) {
			c["email_verified"] = strconv.FormatBool(u.Verified)
			c["locale"] = "en_US"
			delete(c, "nonce") // the provider does not repeat the nonce
		},
		pages: map[string]func(*exchange, User) any{
			"/v2/me": func(x *exchange, u User) any {
				text := func(s string) any {
					return map[string]any{"localized": map[string]any{"en_US": s},
						"preferredLocale": map[string]any{"language": "en", "country": "US"}}
				}
				return withExtra(u,
					map[string]any{"id": u.ID, "firstName": text(u.GivenName), "lastName": text(u.FamilyName),
						"profilePicture": map[string]any{
							"displayImage~": map[string]any{"elements": []any{
								map[string]any{"identifiers": []any{map[string]any{"identifier": u.Picture}}}}}}})
			},
			"/v2/userinfo": func(x *exchange, u User) any {
				return withExtra(u, map[string]any{"sub": u.ID, "name": u.Name, "given_name": u.GivenName,
					"family_name": u.FamilyName,
					"email":       u.Email, "email_verified": u.Verified, "picture": u.Picture, "locale": "en_US"})
			},
			"/v2/emailAddress": func(x *exchange, u User) any {
				return map[string]any{
					"elements": []any{map[string]any{"handle~": map[string]any{"emailAddress": u.Email}}}}
			},
		},
	},
	"notion": {
		authorize: []string{"/v1/oauth/authorize"}, token: []string{"/v1/oauth/token"}, basic: true,
		pages: map[string]func(*exchange, User) any{"/v1/users/me": func(x *exchange, u User) any {
			if x.r.Header.Get("Notion-Version") != "2021-08-16" {
				return x.refuse("Notion-Version is missing")
			}
			return withExtra(u, map[string]any{"bot": map[string]any{"owner": map[string]any{"type": "user",
				"user": map[string]any{
					"id": u.ID, "name": u.Name, "avatar_url": u.Picture, "person": map[string]any{"email": u.Email}}}}})
		}},
	},
	"slack": {
		authorize: []string{"/openid/connect/authorize", "/oauth/authorize"},
		token:     []string{"/api/openid.connect.token", "/api/oauth.access"},
		pages: map[string]func(*exchange, User) any{"/api/openid.connect.userInfo": func(x *exchange, u User) any {
			o := map[string]any{"ok": true, "sub": u.ID, "https://slack.com/user_id": u.ID,
				"https://slack.com/team_id": "T0123",
				"email":                     u.Email, "name": u.Name, "picture": u.Picture}
			if !x.grant.old { // applications with the older protocol do not get the flag
				o["email_verified"] = u.Verified
			}
			return withExtra(u, o)
		}},
		more: func(x *exchange, u User, answer map[string]any) { answer["ok"] = true },
	},
	"snapchat": {
		authorize: []string{"/accounts/oauth2/auth"}, token: []string{"/accounts/oauth2/token"},
		issuer: "/accounts/oauth2/token", discovery: "/accounts/oauth2/token" + wellKnown,
		keys: "/accounts/oauth2/keys",
		algs: []string{"ES256"}, idToken: func(*grant) bool { return false },
		pages: map[string]func(*exchange, User) any{"/v1/me": func(x *exchange, u User) any {
			if q := strings.Join(strings.Fields(x.r.URL.Query().Get("query")),
				" "); q != "{ me { externalId displayName bitmoji { avatar id } email } }" {
				return x.refuse("the query is wrong: %s", q)
			}
			me := map[string]any{"externalId": u.ID, "displayName": u.Name,
				"bitmoji": map[string]any{"avatar": u.Picture, "id": "b1"}}
			if u.Email != "" {
				me["email"] = u.Email
			}
			return map[string]any{"data": map[string]any{"me": withExtra(u, me)}, "errors": []any{}}
		}},
	},
	"spotify": {
		authorize: []string{"/authorize"}, token: []string{"/api/token"}, basic: true,
		pages: map[string]func(*exchange, User) any{"/me": func(x *exchange, u User) any {
			return withExtra(u, map[string]any{"id": u.ID, "display_name": u.Name, "email": u.Email, "images": []any{
				map[string]any{"url": u.Picture + "?small", "width": 64, "height": 64},
				map[string]any{"url": u.Picture, "width": 300, "height": 300},
				map[string]any{"url": u.Picture + "?unknown", "width": nil, "height": nil}}})
		}},
	},
	"twitch": {
		authorize: []string{"/oauth2/authorize"}, token: []string{"/oauth2/token"},
		pages: map[string]func(*exchange, User) any{"/helix/users": func(x *exchange, u User) any {
			if x.r.Header.Get("Client-Id") != ClientID {
				return x.refuse("Client-Id is missing")
			}
			return map[string]any{"data": []any{withExtra(u,
				map[string]any{"id": u.ID, "login": u.Login, "display_name": u.Name, "email": u.Email,
					"profile_image_url": u.Picture, "broadcaster_type": "partner", "description": "plays", "type": "",
					"offline_image_url": u.Picture + "?off", "view_count": 7})}}
		}},
		more: func(x *exchange, u User, answer map[string]any) { answer["scope"] = []string{"user:read:email"} },
	},
	"twitter": {
		pages: map[string]func(*exchange, User) any{
			"/1.1/account/verify_credentials.json": func(x *exchange, u User) any {
				if q := x.r.URL.Query(); q.Get("include_entities") != "false" || q.Get("skip_status") != "true" ||
					q.Get("include_email") != "true" {
					return x.refuse("the query is wrong")
				}
				o := map[string]any{"id": number(u.ID), "id_str": u.ID, "screen_name": u.Login, "name": u.Name,
					"profile_image_url_https": u.Picture}
				if u.Email != "" {
					o["email"] = u.Email
				}
				return withExtra(u, o)
			}},
	},
	"workos": {
		authorize: []string{"/sso/authorize"}, token: []string{"/sso/token"},
		check: func(x *exchange) string {
			if q := x.r.URL.Query(); q.Get("connection") == "" && q.Get("organization") == "" &&
				q.Get("provider") == "" {
				return "none of connection, organization, provider"
			}
			return ""
		},
		more: func(x *exchange, u User, answer map[string]any) {
			delete(answer, "refresh_token")
			answer["profile"] = withExtra(u,
				map[string]any{"object": "profile", "id": u.ID, "first_name": u.GivenName, "last_name": u.FamilyName,
					"email": u.Email, "connection_id": "conn_1", "organization_id": "org_1"})
		},
	},
	"oidc": {
		authorize: []string{"/authorize"}, token: []string{"/token"}, basic: true, pkce: true, sendIss: true,
		discovery: wellKnown, keys: "/keys",
		algs: []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"},
		claims: func(u User, c map[string]any) {
			c["preferred_username"] = u.Login
			c["given_name"], c["family_name"] = u.GivenName, u.FamilyName
			c["groups"] = []string{"staff"}
		},
		pages: map[string]func(*exchange, User) any{"/userinfo": func(x *exchange, u User) any {
			return withExtra(u, map[string]any{"sub": u.ID, "name": u.Name, "email": u.Email,
				"email_verified": u.Verified,
				"picture":        u.Picture})
		}},
	},
}

// refusal is a page that says that a client's request is wrong.
type refusal struct{ text string }

func (x *exchange) refuse(format string, args ...any) any {
	text := fmt.Sprintf(format, args...)
	x.complain(x.name, "%s: %s", x.path, text)
	return refusal{text}
}
