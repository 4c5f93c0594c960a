package httpapi

import (
	"errors"
	"strings"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/captcha"
)

// captcha is a guard that requires a solved captcha, if captchas are configured.
func (s *Server) captcha(h handler) handler {
	return func(c *call) error {
		if err := s.verifyCaptcha(c); err != nil {
			return err
		}
		return h(c)
	}
}

// verifyCaptcha returns nil if no captcha is required, if the captcha was solved, or if the caller is an administrator.
func (s *Server) verifyCaptcha(c *call) error {
	v := c.live.Captcha
	if v == nil {
		return nil
	}
	token, err := c.captchaToken()
	if err != nil {
		return err
	}
	if admin, err := c.isAdmin(); admin || err != nil {
		return err
	}
	if token == "" {
		return noCaptcha("no captcha_token found", nil)
	}
	err = v.Verify(c.ctx(), token, c.ip())
	if err == nil {
		return nil
	}
	refused, ok := errors.AsType[*captcha.Refused](err)
	if !ok {
		return &problem{status: 500, code: refusal.CodeUnexpectedFailure, msg: "captcha verification process failed",
			err: err}
	}
	if refused.Misconfigured() { // the user cannot mend this
		s.log.Error("the captcha provider refuses AUTH_SECURITY_CAPTCHA_SECRET: every captcha fails",
			"reasons", refused.Reasons())
	}
	return noCaptcha(refused.Reasons(), err)
}

func noCaptcha(why string, err error) *problem {
	p := newProblem(400, refusal.CodeCaptchaFailed, "captcha protection: request disallowed ("+why+")")
	p.err = err
	return p
}

// captchaToken returns the captcha's token in the body. It may be nested, as the client library sends it, or at the top
// level. The handler can read the body again.
func (c *call) captchaToken() (string, error) {
	text, err := c.body()
	if err != nil {
		return "", err
	}
	var in struct {
		Security struct {
			Token string `json:"captcha_token"`
		} `json:"gotrue_meta_security"`
		Token string `json:"captcha_token"`
	}
	if err := decodeJSON(text, &in); err != nil {
		return "", err
	}
	c.rewind(text)
	if t := strings.TrimSpace(in.Security.Token); t != "" {
		return t, nil
	}
	return strings.TrimSpace(in.Token), nil
}
