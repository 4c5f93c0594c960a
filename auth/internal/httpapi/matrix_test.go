package httpapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

// The callers of the matrix, in the order of its columns.
var callers = []string{"nobody", "anon key", "anonymous", "user", "other user", "banned", "session ended", "expired",
	"foreign key", "service_role", "aal1 with factor", "admin at aal1"}

// everybody, users and admins are rows of statuses with the code of a failure.
func everybody(answer string) []string { return slices.Repeat([]string{answer}, len(callers)) }

func users(answer string) []string {
	return []string{"401 no_authorization", "403 bad_jwt", answer, answer, answer, "403 user_banned",
		"403 session_not_found", "403 bad_jwt", "403 bad_jwt", "403 bad_jwt", answer, answer}
}

func admins(answer string) []string {
	return []string{"401 no_authorization", "403 not_admin", "403 not_admin", "403 not_admin", "403 not_admin",
		"403 user_banned", "403 session_not_found", "403 bad_jwt", "403 bad_jwt", answer, "403 not_admin",
		"403 insufficient_aal"}
}

// but replaces the answer for some callers.
func but(row []string, changes ...string) []string {
	for _, change := range changes {
		caller, answer, _ := strings.Cut(change, ": ")
		row[slices.Index(callers, caller)] = answer
	}
	return row
}

// cell is one caller at one route.
type cell struct {
	a                        *api
	user                     grantJSON // the user that the routes are about
	token, address, userMail string
	factor                   string // the user's, made when a route first needs it
}

// row is a request and what each caller gets. {user_id} is the user's, {id} a session's, {factor_id} a factor's.
type row struct {
	query string
	body  func(c *cell) any
	want  []string
}

func fixed(body any) func(*cell) any { return func(*cell) any { return body } }

// A route that is not in this table fails the test.
var matrix = map[string]row{
	"GET /health":                           {want: everybody("200")},
	"GET /livez":                            {want: everybody("200")},
	"GET /readyz":                           {want: everybody("200")},
	"GET /settings":                         {want: everybody("200")},
	"GET /.well-known/jwks.json":            {want: everybody("200")},
	"GET /openapi.json":                     {want: everybody("200")},
	"GET /.well-known/openid-configuration": {want: everybody("200")},
	"POST /verify/confirm":                  {want: everybody("404 not_found")},
	"POST /signup": {body: func(c *cell) any {
		return map[string]any{"email": c.address, "password": sesame}
	}, want: everybody("200")},
	"POST /token": {query: "grant_type=password",
		body: func(c *cell) any {
			return map[string]any{"email": c.userMail, "password": sesame}
		}, want: everybody("200")},
	"POST /verify": {body: fixed(map[string]any{"type": "signup",
		"token_hash": strings.Repeat("0", 64)}), want: everybody("403 otp_expired")},
	"GET /verify": {query: "type=signup&token=" + strings.Repeat("0", 64),
		want: everybody("303")},
	"POST /otp": {body: func(c *cell) any { return map[string]any{"email": c.address} },
		want: everybody("200")},
	"POST /magiclink": {body: func(c *cell) any {
		return map[string]any{"email": c.address}
	}, want: everybody("200")},
	"POST /recover": {body: func(c *cell) any {
		return map[string]any{"email": c.address}
	}, want: everybody("200")},
	"POST /resend": {body: func(c *cell) any {
		return map[string]any{"email": c.address, "type": "signup"}
	}, want: everybody("200")},
	"GET /user": {want: users("200")},
	"PUT /user": {body: fixed(map[string]any{"data": map[string]any{"a": 1}}),
		want: users("200")},
	"GET /reauthenticate": {want: but(users("200"), "anonymous: 400 validation_failed")},
	"GET /user/sessions":  {want: users("200")},
	"DELETE /user/sessions/{id}": {want: but(users("404 session_not_found"), "user: 204",
		"aal1 with factor: 204", "admin at aal1: 204")},
	"GET /authorize": {query: "provider=github", want: everybody("302")},
	"GET /callback":  {want: everybody("303 bad_oauth_callback")},
	"POST /callback": {want: everybody("303 bad_oauth_callback")},
	"GET /user/identities/authorize": {query: "provider=github&skip_http_redirect=true",
		want: but(users("200"), "aal1 with factor: 403 insufficient_aal", "admin at aal1: 403 insufficient_aal")},
	"DELETE /user/identities/{identity_id}": {want: but(users("422 single_identity_not_deletable"),
		"aal1 with factor: 403 insufficient_aal", "admin at aal1: 403 insufficient_aal")},
	"POST /sso": {body: fixed(map[string]any{"domain": "example.org"}),
		want: everybody("404 saml_provider_disabled")},
	"POST /logout": {query: "scope=local",
		want: but(users("204"), "banned: 204", "session ended: 204")},
	"POST /factors": {body: func(c *cell) any {
		return map[string]any{"factor_type": "totp", "friendly_name": c.address}
	}, want: but(users("200"), "anonymous: 403 no_authorization", "aal1 with factor: 403 insufficient_aal",
		"admin at aal1: 403 insufficient_aal")},
	"POST /factors/{factor_id}/challenge": {want: but(users("404 mfa_factor_not_found"),
		"anonymous: 403 no_authorization", "user: 200", "aal1 with factor: 200", "admin at aal1: 200")},
	"POST /factors/{factor_id}/verify": {body: fixed(map[string]any{"challenge_id": uuid.NewString(),
		"code": "123456"}), want: but(users("404 mfa_factor_not_found"), "anonymous: 403 no_authorization",
		"user: 422 mfa_factor_not_found", "aal1 with factor: 422 mfa_factor_not_found",
		"admin at aal1: 422 mfa_factor_not_found")},
	"DELETE /factors/{factor_id}": {want: but(users("404 mfa_factor_not_found"),
		"anonymous: 403 no_authorization", "user: 200", "aal1 with factor: 422 insufficient_aal",
		"admin at aal1: 422 insufficient_aal")},
	"GET /factors/recovery-codes": {want: but(users("404 mfa_factor_not_found"),
		"anonymous: 403 no_authorization")},
	"POST /factors/recovery-codes": {want: but(users("422 mfa_recovery_codes_enroll_not_enabled"),
		"anonymous: 403 no_authorization")},
	"POST /factors/recovery-codes/regenerate": {want: but(users("422 mfa_recovery_codes_enroll_not_enabled"),
		"anonymous: 403 no_authorization")},
	"POST /factors/recovery-codes/verify": {want: but(users("422 mfa_recovery_codes_verify_not_enabled"),
		"anonymous: 403 no_authorization")},
	"DELETE /factors/recovery-codes": {want: but(users("403 insufficient_aal"), "anonymous: 403 no_authorization")},
	"POST /passkeys/registration/options": {want: but(users("200"), "anonymous: 403 no_authorization",
		"aal1 with factor: 403 insufficient_aal", "admin at aal1: 403 insufficient_aal")},
	"POST /passkeys/registration/verify": {body: fixed(map[string]any{}), want: but(users("400 validation_failed"),
		"anonymous: 403 no_authorization", "aal1 with factor: 403 insufficient_aal",
		"admin at aal1: 403 insufficient_aal")},
	"POST /passkeys/authentication/options": {want: everybody("200")},
	"POST /passkeys/authentication/verify":  {body: fixed(map[string]any{}), want: everybody("400 validation_failed")},
	"GET /passkeys":                         {want: users("200")},
	"PATCH /passkeys/{passkey_id}":          {want: users("404 validation_failed")},
	"DELETE /passkeys/{passkey_id}": {want: but(users("404 validation_failed"),
		"aal1 with factor: 403 insufficient_aal", "admin at aal1: 403 insufficient_aal")},
	"GET /admin/users/{user_id}/passkeys":                 {want: admins("200")},
	"DELETE /admin/users/{user_id}/passkeys/{passkey_id}": {want: admins("404 validation_failed")},
	"GET /admin/users/{user_id}/factors":                  {want: admins("200")},
	"PUT /admin/users/{user_id}/factors/{factor_id}": {body: func(c *cell) any {
		return map[string]any{"friendly_name": c.address}
	}, want: admins("200")},
	"DELETE /admin/users/{user_id}/factors/{factor_id}": {want: admins("200")},
	"POST /invite": {body: func(c *cell) any { return map[string]any{"email": c.address} },
		want: admins("200")},
	"POST /admin/generate_link": {body: func(c *cell) any {
		return map[string]any{"type": "magiclink", "email": c.userMail}
	}, want: admins("200")},
	"GET /admin/audit": {want: admins("200")},
	"GET /admin/users": {want: admins("200")},
	"POST /admin/users": {body: func(c *cell) any { return map[string]any{"email": c.address} },
		want: admins("200")}, "GET /admin/users/{user_id}": {want: admins("200")},
	"POST /admin/users/{user_id}": {body: func(c *cell) any { return map[string]any{"email": c.address} },
		want: admins("422 validation_failed")},
	"PUT /admin/users/{user_id}":                  {body: fixed(map[string]any{"role": "editor"}), want: admins("200")},
	"DELETE /admin/users/{user_id}":               {want: admins("200")},
	"GET /admin/users/{user_id}/sessions":         {want: admins("200")},
	"DELETE /admin/users/{user_id}/sessions":      {want: admins("204")},
	"DELETE /admin/users/{user_id}/sessions/{id}": {want: admins("204")},
	"GET /admin/outbox":                           {want: admins("200")},
	"POST /admin/outbox/{id}/resend":              {want: admins("404 not_found")},
}

// destructive routes leave nothing for the next row.
var destructive = map[string]bool{"DELETE /user/sessions/{id}": true, "POST /logout": true,
	"DELETE /admin/users/{user_id}": true, "DELETE /factors/{factor_id}": true,
	"DELETE /admin/users/{user_id}/sessions": true, "DELETE /admin/users/{user_id}/sessions/{id}": true,
	"DELETE /admin/users/{user_id}/factors/{factor_id}": true}

// Every route, by every kind of caller.
func TestMatrix(t *testing.T) {
	var rows []string
	for route := range matrix {
		rows = append(rows, route)
	}
	slices.Sort(rows)
	if d := cmp.Diff(served(t), rows); d != "" {
		t.Fatalf("routes.go (-) and the matrix (+):\n%s", d)
	}
	a := open(t, passkeysOn, func(s *flow.Settings, _ *Settings) {
		s.External = flow.ExternalSettings{Providers: githubAlone(t), ManualLinking: true, LinkingAAL2: true,
			StateCookie: true}
	})
	foreign, err := token.Generate(token.ES256)
	must.Succeed(t, err)
	foreignSet, err := token.NewSet(token.SetConfig{Keys: []token.Entry{{Key: foreign, State: token.Current}}})
	must.Succeed(t, err)
	shared := map[string]*cell{}
	for n, route := range rows {
		for i, caller := range callers {
			name := fmt.Sprintf("u%d-%d", n, i)
			c := shared[caller]
			if c == nil || destructive[route] {
				c = &cell{a: a, userMail: name + "@example.org"}
				c.user = a.member(c.userMail)
				c.token = c.tokenOf(caller, name, foreignSet)
				if !destructive[route] {
					shared[caller] = c
				}
			}
			c.address = name + "new@example.org"
			r := matrix[route]
			if strings.Contains(route, "{factor_id}") && c.factor == "" {
				c.factor = a.enroll(c.user, "").ID
			}
			path := strings.NewReplacer("{factor_id}", c.factor, "{user_id}", c.user.User.ID, "{identity_id}",
				c.user.User.ID, "{id}", sessionOf(t, c.user.AccessToken)).Replace(route)
			if r.query != "" {
				path += "?" + r.query
			}
			var body any
			if r.body != nil {
				body = r.body(c)
			}
			var headers []header
			if c.token != "" {
				headers = append(headers, bearer(c.token))
			}
			got := a.do(path, body, headers...)
			if have := strings.TrimSpace(
				fmt.Sprint(got.StatusCode, " ", got.Header.Get("X-Sb-Error-Code"))); have != r.want[i] {
				t.Errorf("%s by %s: %s, want %s: %s", route, caller, have, r.want[i], got.body)
			}
		}
	}
}

// tokenOf makes the caller and its token.
func (c *cell) tokenOf(caller, name string, foreign *token.Set) string {
	a := c.a
	a.t.Helper()
	switch caller {
	case "anon key":
		return a.serviceToken("anon", time.Hour)
	case "anonymous":
		var g grantJSON
		a.do("POST /signup", map[string]any{}).json(&g)
		return g.AccessToken
	case "user":
		return c.user.AccessToken
	case "other user":
		return a.member(name + "other@example.org").AccessToken
	case "banned":
		g := a.member(name + "banned@example.org")
		a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
		return g.AccessToken
	case "session ended":
		g := a.member(name + "gone@example.org")
		a.do("POST /logout?scope=global", nil, bearer(g.AccessToken)).is(204, "")
		return g.AccessToken
	case "expired":
		var claims token.Claims
		must.Succeed(a.t, must.ErrOf(a.keys.Load().Verify(&claims, c.user.AccessToken, a.clock())))
		claims.ExpiresAt = a.clock().Add(-time.Second).Unix()
		text, err := a.keys.Load().Sign(nil, &claims)
		must.Succeed(a.t, err)
		return string(text)
	case "foreign key":
		var claims token.Claims
		must.Succeed(a.t, must.ErrOf(a.keys.Load().Verify(&claims, c.user.AccessToken, a.clock())))
		claims.Role = "service_role"
		text, err := foreign.Sign(nil, &claims)
		must.Succeed(a.t, err)
		return string(text)
	case "aal1 with factor":
		c.factor = a.enrolled(c.user).ID
		return a.signIn(c.userMail).AccessToken
	case "admin at aal1":
		c.factor = a.enrolled(c.user).ID
		a.do("PUT /admin/users/"+c.user.User.ID, map[string]any{"role": "supabase_admin"}, a.service()).is(200, "*")
		return a.signIn(c.userMail).AccessToken
	case "service_role":
		return a.serviceToken("service_role", time.Hour)
	}
	return ""
}

// sessionOf is the session that an access token names.
func sessionOf(t *testing.T, text string) string {
	t.Helper()
	claims := claimsOf(t, text)
	return claims["session_id"].(string)
}
