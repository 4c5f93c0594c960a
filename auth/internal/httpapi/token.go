package httpapi

import (
	"cmp"
	"errors"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/provider"
)

// postToken issues tokens for the grant that the query names.
func (s *Server) postToken(c *call) error {
	grant := c.param("grant_type")
	switch grant {
	case "refresh_token":
		return s.refreshGrant(c)
	case "pkce":
		return s.pkceGrant(c)
	case "id_token":
		return s.idTokenGrant(c)
	}
	// The clients of the grants above present a secret that they have received before. What the grants below present
	// can be guessed, so they need a captcha.
	if err := s.verifyCaptcha(c); err != nil {
		return err
	}
	switch grant {
	case "password":
		return s.passwordGrant(c)
	case "web3":
		return noWeb3 // see disabled.go
	}
	return newProblem(400, refusal.CodeInvalidCredentials, "unsupported_grant_type")
}

func (s *Server) passwordGrant(c *call) error {
	if err := s.limit(c, byToken); err != nil {
		return err
	}
	var in account.Password
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.grantView(s.accounts.SignInPassword(c.ctx(), c.requestInfo(), in))
}

// refreshGrant refreshes a session. Only refresh tokens that this daemon has not issued count against the client's
// limit, so it parses the token before Refresh does. A valid token must never be refused because of other clients at
// the same address: that would sign the user out.
func (s *Server) refreshGrant(c *call) error {
	c.retries = true
	var in struct {
		RefreshToken string `json:"refresh_token"`
	}
	if err := c.decode(&in); err != nil {
		return cmp.Or(s.limit(c, byToken), err)
	}
	if _, err := s.core.Codec.Parse(in.RefreshToken); err != nil {
		if s.core.IsFormer(in.RefreshToken) {
			in.RefreshToken, err = s.ownToken(c, in.RefreshToken)
		} else {
			err = s.limit(c, byToken) // if the limit allows the request, Refresh refuses the token
		}
		if err != nil {
			return err
		}
	}
	return c.grantView(s.accounts.Refresh(c.ctx(), c.requestInfo(), in.RefreshToken))
}

// ownToken converts a refresh token of the former service to one of this daemon. A token that is found does not count
// against the client's limit. A client over its limit gets a 503: after a 429 the client library would sign the user
// out because of other clients' bad tokens.
func (s *Server) ownToken(c *call, text string) (string, error) {
	if wait := s.draw(look, c, byToken); wait > 0 {
		return "", &problem{status: 503, code: refusal.CodeUnexpectedFailure, retryAfter: retryIn(wait),
			msg: "The service is temporarily unavailable, please retry after a moment."}
	}
	own, err := s.accounts.OwnToken(c.ctx(), text)
	if r, ok := errors.AsType[*refusal.Refusal](err); ok && r.Code == refusal.CodeRefreshTokenNotFound {
		s.draw(charge, c, byToken)
	}
	return own, err
}

func (s *Server) pkceGrant(c *call) error {
	if err := s.limit(c, byToken); err != nil {
		return err
	}
	in := oauth.CodeExchange{Bearer: c.bearer()}
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.grantView(s.oauth.ExchangeCode(c.ctx(), c.requestInfo(), in))
}

// idTokenGrant signs in with an ID token or, if the body has link_identity, links the identity to the caller's account.
func (s *Server) idTokenGrant(c *call) error {
	if err := s.limit(c, byToken); err != nil {
		return err
	}
	var in struct {
		provider.IDTokenRequest
		LinkIdentity bool `json:"link_identity"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if err := c.knownAud(); err != nil {
		return err
	}
	p := oauth.IDToken{Request: in.IDTokenRequest}
	if in.LinkIdentity {
		if len(c.r.Header["Authorization"]) == 0 {
			return &problem{oauth: true, code: "invalid request",
				msg: "Linking requires a valid user access token in Authorization"}
		}
		principal, err := s.core.Authenticate(c.ctx(), c.bearer(), c.aud(), flow.Full)
		if err != nil {
			return err
		}
		p.Linking = &principal
	}
	g, err := s.oauth.SignInIDToken(c.ctx(), c.requestInfo(), p)
	if e, ok := errors.AsType[*provider.OAuthError](err); ok {
		return &problem{oauth: true, code: e.Code, msg: e.Description, err: e}
	}
	return c.grantView(g, err)
}
