package httpapi

import (
	"net/http"

	"gatehouse/auth/internal/account/flow"
)

// routes returns all endpoints of the daemon's port. The guards before the handlers are in guards.go.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()

	mux.Handle("GET /health", noTimeout(s.getHealth)) // health.go
	mux.Handle("GET /livez", noTimeout(s.getLivez))
	mux.Handle("GET /readyz", noTimeout(s.getReadyz))
	mux.Handle("GET /settings", noTimeout(s.getSettings)) // settings.go
	mux.Handle("GET /.well-known/jwks.json", noTimeout(s.getJWKS))
	mux.Handle("GET /.well-known/openid-configuration", noTimeout(s.getDiscovery)) // discovery.go
	mux.Handle("GET /openapi.json", noTimeout(s.getOpenAPI))

	mux.Handle("POST /signup", s.open(s.captcha(s.postSignup))) // signup.go
	mux.Handle("POST /token", s.open(s.postToken))              // token.go: a captcha for some grants
	mux.Handle("POST /verify", s.limited(byVerify, s.postVerify))
	mux.Handle("GET /verify", s.open(s.getVerify))            // verify.go
	mux.Handle("POST /verify/confirm", s.open(s.postConfirm)) // pages.go
	mux.Handle("POST /otp", s.limited(byOTP, s.captcha(s.postOTP)))
	mux.Handle("POST /magiclink", s.limited(byMagicLink, s.captcha(s.postMagicLink))) // otp.go
	mux.Handle("POST /recover", s.limited(byRecover, s.captcha(s.postRecover)))
	mux.Handle("POST /resend", s.limited(byResend, s.captcha(s.postResend)))

	mux.Handle("GET /authorize", s.open(s.getAuthorize)) // authorize.go
	mux.Handle("GET /callback", s.open(s.getCallback))   // callback.go
	mux.Handle("POST /callback", s.open(s.postCallback))

	mux.Handle("GET /user", s.user(flow.ReadUser, s.getUser)) // user.go
	mux.Handle("PUT /user", s.user(flow.Full, s.putUser))
	mux.Handle("GET /reauthenticate", s.user(flow.Full, s.getReauthenticate))
	mux.Handle("GET /user/sessions", s.user(flow.Full, s.getSessions))
	mux.Handle("DELETE /user/sessions/{id}", s.user(flow.Full, withID("id", s.deleteSession)))
	mux.Handle("GET /user/identities/authorize", s.user(flow.Full, s.getLinkAuthorize))
	mux.Handle("DELETE /user/identities/{identity_id}", s.user(flow.AnyAudience, s.deleteIdentity))

	mux.Handle("POST /factors", s.member(s.postFactor)) // factors.go
	mux.Handle("POST /factors/{factor_id}/challenge", s.member(withID("factor_id", s.postChallenge)))
	mux.Handle("POST /factors/{factor_id}/verify", s.member(withID("factor_id", s.postFactorVerify)))
	mux.Handle("DELETE /factors/{factor_id}", s.member(withID("factor_id", s.deleteFactor)))
	mux.Handle("GET /factors/recovery-codes", s.member(s.getRecoveryCodes)) // recovery_codes.go
	mux.Handle("POST /factors/recovery-codes", s.member(s.postRecoveryCodes))
	mux.Handle("DELETE /factors/recovery-codes", s.member(s.deleteRecoveryCodes))
	mux.Handle("POST /factors/recovery-codes/verify", s.member(s.postRecoveryCodesVerify))
	mux.Handle("POST /factors/recovery-codes/regenerate", s.member(s.postRecoveryCodesRegenerate))

	mux.Handle("POST /passkeys/registration/options", s.registers(byPasskeyRegistration, s.postRegistrationOptions)) // passkeys.go
	mux.Handle("POST /passkeys/registration/verify", s.registers(byPasskeyRegistration, s.postRegistrationVerify))
	mux.Handle("POST /passkeys/authentication/options", s.signsIn(byPasskeyOptions, optional(s.captcha(s.postPasskeyOptions))))
	mux.Handle("POST /passkeys/authentication/verify", s.signsIn(byPasskeyVerify, s.postPasskeyVerify))
	mux.Handle("GET /passkeys", s.owner(s.getPasskeys))
	mux.Handle("PATCH /passkeys/{passkey_id}", s.owner(s.patchPasskey))
	mux.Handle("DELETE /passkeys/{passkey_id}", s.owner(s.deletePasskey))

	mux.Handle("POST /logout", s.open(s.postLogout)) // user.go: it also takes tokens whose session is gone

	mux.Handle("POST /invite", s.admin(s.postInvite)) // admin_link.go
	mux.Handle("POST /admin/generate_link", s.admin(s.postGenerateLink))
	mux.Handle("GET /admin/audit", s.admin(s.getAudit)) // admin_audit.go
	mux.Handle("GET /admin/users", s.admin(s.getUsers)) // admin_users.go
	mux.Handle("POST /admin/users", s.admin(s.postUser))
	mux.Handle("GET /admin/users/{user_id}", s.admin(withID("user_id", s.getAdminUser)))
	mux.Handle("POST /admin/users/{user_id}", s.admin(s.postUser))
	mux.Handle("PUT /admin/users/{user_id}", s.admin(withID("user_id", s.putAdminUser)))
	mux.Handle("DELETE /admin/users/{user_id}", s.admin(withID("user_id", s.deleteUser)))
	mux.Handle("GET /admin/users/{user_id}/sessions", s.admin(withID("user_id", s.getUserSessions)))
	mux.Handle("DELETE /admin/users/{user_id}/sessions", s.admin(withID("user_id", s.deleteUserSessions)))
	mux.Handle("DELETE /admin/users/{user_id}/sessions/{id}", s.admin(withID("user_id", s.deleteUserSession)))
	mux.Handle("GET /admin/users/{user_id}/factors", s.admin(withID("user_id", s.getAdminFactors))) // admin_factors.go
	mux.Handle("PUT /admin/users/{user_id}/factors/{factor_id}", s.admin(s.putAdminFactor))
	mux.Handle("DELETE /admin/users/{user_id}/factors/{factor_id}", s.admin(s.deleteAdminFactor))
	mux.Handle("GET /admin/outbox", s.admin(s.getOutbox)) // admin_outbox.go
	mux.Handle("POST /admin/outbox/{id}/resend", s.admin(withID("id", s.postResendMessage)))

	mux.Handle("GET /admin/users/{user_id}/passkeys", s.admin(withID("user_id", s.getAdminPasskeys))) // passkeys.go
	mux.Handle("DELETE /admin/users/{user_id}/passkeys/{passkey_id}", s.admin(withID("user_id", s.deleteAdminPasskey)))

	mux.Handle("POST /sso", s.open(s.postSSO)) // disabled.go: routes that always answer as disabled
	mux.Handle("/oauth/", disabled(noOAuthServer))
	mux.Handle("/admin/oauth/", disabled(noOAuthServer))
	mux.Handle("/user/oauth/grants", disabled(noOAuthServer))
	mux.Handle("/admin/custom-providers", s.disabledForAdmins(noCustomProviders))
	mux.Handle("/admin/custom-providers/", s.disabledForAdmins(noCustomProviders))
	mux.Handle("/scim/v2/", disabled(noSCIM))
	return mux
}

// handler answers a call, or returns why it cannot.
type handler func(c *call) error

// ServeHTTP is called by ServeMux: it starts the time limit, calls h, and writes the error that h returns.
func (h handler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c := w.(*call) // serve passes a *call to ServeMux
	c.routed = true
	c.startTimeout()
	err := c.checkQuery()
	if err == nil {
		err = h(c)
	}
	if err != nil {
		c.writeError(err)
	}
}

// noTimeout is a handler without a time limit, which answers with values that are ready.
type noTimeout func(c *call) error

func (h noTimeout) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c := w.(*call)
	c.routed = true
	if err := h(c); err != nil {
		c.writeError(err)
	}
}

// open is the guard of routes that anyone may call: it checks nothing.
func (s *Server) open(h handler) http.Handler { return h }
