package httpapi

import (
	"net/http"

	"gatehouse/auth/internal/account/flow"
)

// facts are properties of a route, apart from its guards and its handler.
type facts uint8

const (
	ready   facts = 1 << iota // the answer is ready at once: no time limit, no checkQuery
	polled                    // machines poll it: only its failures are logged
	browsed                   // browsers navigate to it: clients that prefer HTML get its failures as pages
	// anyQuery means that checkQuery is not called. The route answers every error by a redirect, and a provider that
	// calls back may send parameters of its own.
	anyQuery
)

// is reports whether the route of the request has this property.
func (c *call) is(fact facts) bool { return c.srv.facts[c.r.Pattern]&fact != 0 }

// addRoutes adds all routes of the daemon's port. The guards that wrap the handlers are in guards.go; a handler without
// a guard is open to all. The comment at the end of a line names the file of the handler.
func (s *Server) addRoutes() {
	s.mux, s.facts = http.NewServeMux(), map[string]facts{}
	at := func(pattern string, h handler, all ...facts) {
		s.mux.Handle(pattern, h)
		for _, fact := range all {
			s.facts[pattern] |= fact
		}
	}

	at("GET /health", s.getHealth, ready, polled) // health.go
	at("GET /livez", s.getLivez, ready, polled)
	at("GET /readyz", s.getReadyz, ready, polled)
	at("GET /settings", s.getSettings, ready) // settings.go
	at("GET /.well-known/jwks.json", s.getJWKS, ready)
	at("GET /.well-known/openid-configuration", s.getDiscovery, ready) // discovery.go
	at("GET /openapi.json", s.getOpenAPI, ready)

	at("POST /signup", s.captcha(s.postSignup)) // signup.go
	at("POST /token", s.postToken)              // token.go; some grants need a captcha
	at("POST /verify", s.limited(byVerify, s.postVerify))
	at("GET /verify", s.getVerify, browsed, anyQuery)  // verify.go
	at("POST /verify/confirm", s.postConfirm, browsed) // pages.go
	at("POST /otp", s.limited(byOTP, s.captcha(s.postOTP)))
	at("POST /magiclink", s.limited(byMagicLink, s.captcha(s.postMagicLink))) // otp.go
	at("POST /recover", s.limited(byRecover, s.captcha(s.postRecover)))
	at("POST /resend", s.limited(byResend, s.captcha(s.postResend)))

	at("GET /authorize", s.getAuthorize, browsed)         // authorize.go
	at("GET /callback", s.getCallback, browsed, anyQuery) // callback.go
	at("POST /callback", s.postCallback, browsed, anyQuery)

	at("GET /user", s.user(flow.ReadUser, s.getUser)) // user.go
	at("PUT /user", s.user(flow.Full, s.putUser))
	at("GET /reauthenticate", s.user(flow.Full, s.getReauthenticate))
	at("GET /user/sessions", s.user(flow.Full, s.getSessions))
	at("DELETE /user/sessions/{id}", s.user(flow.Full, withID("id", s.deleteSession)))
	at("GET /user/identities/authorize", s.user(flow.Full, s.getLinkAuthorize))
	at("DELETE /user/identities/{identity_id}", s.user(flow.AnyAudience, s.deleteIdentity))

	at("POST /factors", s.member(s.postFactor)) // factors.go
	at("POST /factors/{factor_id}/challenge", s.member(withID("factor_id", s.postChallenge)))
	at("POST /factors/{factor_id}/verify", s.member(withID("factor_id", s.postFactorVerify)))
	at("DELETE /factors/{factor_id}", s.member(withID("factor_id", s.deleteFactor)))
	at("GET /factors/recovery-codes", s.member(s.getRecoveryCodes)) // recovery_codes.go
	at("POST /factors/recovery-codes", s.member(s.postRecoveryCodes))
	at("DELETE /factors/recovery-codes", s.member(s.deleteRecoveryCodes))
	at("POST /factors/recovery-codes/verify", s.member(s.postRecoveryCodesVerify))
	at("POST /factors/recovery-codes/regenerate", s.member(s.postRecoveryCodesRegenerate))

	at("POST /passkeys/registration/options", s.registers(byPasskeyRegistration, s.postRegistrationOptions)) // passkeys.go
	at("POST /passkeys/registration/verify", s.registers(byPasskeyRegistration, s.postRegistrationVerify))
	at("POST /passkeys/authentication/options", s.limited(byPasskeyOptions, optional(s.captcha(s.postPasskeyOptions))))
	at("POST /passkeys/authentication/verify", s.limited(byPasskeyVerify, s.postPasskeyVerify))
	at("GET /passkeys", s.user(flow.Full, s.getPasskeys))
	at("PATCH /passkeys/{passkey_id}", s.user(flow.Full, s.patchPasskey))
	at("DELETE /passkeys/{passkey_id}", s.user(flow.Full, s.deletePasskey))

	at("POST /logout", s.postLogout) // user.go; it also accepts tokens whose session is gone

	at("POST /invite", s.admin(s.postInvite)) // admin_link.go
	at("POST /admin/generate_link", s.admin(s.postGenerateLink))
	at("GET /admin/audit", s.admin(s.getAudit)) // admin_audit.go
	at("GET /admin/users", s.admin(s.getUsers)) // admin_users.go
	at("POST /admin/users", s.admin(s.postUser))
	at("GET /admin/users/{user_id}", s.admin(withID("user_id", s.getAdminUser)))
	at("POST /admin/users/{user_id}", s.admin(s.postUser))
	at("PUT /admin/users/{user_id}", s.admin(withID("user_id", s.knownUser(s.putAdminUser))))
	at("DELETE /admin/users/{user_id}", s.admin(withID("user_id", s.knownUser(s.deleteUser))))
	at("GET /admin/users/{user_id}/sessions", s.admin(withID("user_id", s.getUserSessions)))
	at("DELETE /admin/users/{user_id}/sessions", s.admin(withID("user_id", s.deleteUserSessions)))
	at("DELETE /admin/users/{user_id}/sessions/{id}", s.admin(withIDs("user_id", "id", s.deleteUserSession)))
	at("GET /admin/users/{user_id}/factors", s.admin(withID("user_id", s.getAdminFactors))) // admin_factors.go
	at("PUT /admin/users/{user_id}/factors/{factor_id}", s.admin(withIDs("user_id", "factor_id", s.putAdminFactor)))
	at("DELETE /admin/users/{user_id}/factors/{factor_id}", s.admin(withIDs("user_id", "factor_id", s.deleteAdminFactor)))
	at("GET /admin/outbox", s.admin(s.getOutbox)) // admin_outbox.go
	at("POST /admin/outbox/{id}/resend", s.admin(withID("id", s.postResendMessage)))

	at("GET /admin/users/{user_id}/passkeys", s.admin(withID("user_id", s.getAdminPasskeys))) // passkeys.go
	at("DELETE /admin/users/{user_id}/passkeys/{passkey_id}", s.admin(withID("user_id", s.deleteAdminPasskey)))

	at("POST /sso", s.postSSO) // disabled.go has the routes whose features do not exist
	at("/oauth/", disabled(noOAuthServer))
	at("/admin/oauth/", disabled(noOAuthServer))
	at("/user/oauth/grants", disabled(noOAuthServer))
	at("/admin/custom-providers", s.disabledForAdmins(noCustomProviders))
	at("/admin/custom-providers/", s.disabledForAdmins(noCustomProviders))
	at("/scim/v2/", disabled(noSCIM))
}

// handler answers a call, or returns the error to answer with.
type handler func(c *call) error

// ServeHTTP is called by ServeMux. It starts the time limit, calls h, and writes the error that h returns.
func (h handler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c := w.(*call) // serve passes a *call to ServeMux
	c.routed = true
	if !c.is(ready) {
		c.startTimeout()
	}
	err := c.checkQuery()
	if err == nil && c.hidesPasskeys() {
		err = noPasskeys
	}
	if err == nil {
		err = h(c)
	}
	if err != nil {
		c.writeError(err)
	}
}
