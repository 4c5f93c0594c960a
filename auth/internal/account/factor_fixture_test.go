package account_test

import (
	"encoding/base32"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/totp"
	"gatehouse/shared/must"
)

func (h *house) enroll(g flow.Grant, p factor.Enrolment) factor.Enrolled {
	h.t.Helper()
	h.pass(time.Second)
	e, err := h.EnrollFactor(h.t.Context(), browser, h.caller(g), p)
	must.Succeed(h.t, err)
	return e
}

func (h *house) app(g flow.Grant, name string) factor.Enrolled {
	h.t.Helper()
	return h.enroll(g, factor.Enrolment{Kind: "totp", FriendlyName: name})
}

func (h *house) phone(g flow.Grant, number string) factor.Enrolled {
	h.t.Helper()
	return h.enroll(g, factor.Enrolment{Kind: "phone", FriendlyName: number, Phone: number})
}

func (h *house) challenge(g flow.Grant, e factor.Enrolled) uuid.UUID {
	h.t.Helper()
	h.pass(time.Second)
	ch, _, err := h.ChallengeFactor(h.t.Context(), browser, h.caller(g), e.Factor.ID, "")
	must.Succeed(h.t, err)
	return ch.ID
}

// code is what the app shows now.
func (h *house) code(e factor.Enrolled) string {
	h.t.Helper()
	key, err := base32.StdEncoding.DecodeString(e.Secret)
	must.Succeed(h.t, err)
	return totp.Code(key, totp.Step(h.clock()))
}

func (h *house) answer(g flow.Grant, e factor.Enrolled, challenge uuid.UUID, code string) (flow.Grant, error) {
	h.t.Helper()
	return h.VerifyFactor(h.t.Context(), browser, h.caller(g),
		flow.FactorAnswer{Factor: e.Factor.ID, Challenge: challenge, Code: code})
}

// verified answers a new challenge with the right code.
func (h *house) verified(g flow.Grant, e factor.Enrolled) flow.Grant {
	h.t.Helper()
	h.pass(totp.Period) // another code
	challenge := h.challenge(g, e)
	code := ""
	if e.Factor.Kind == store.FactorTOTP {
		code = h.code(e)
	} else {
		code = h.newest("mfa", e.Factor.Phone).Code
	}
	up, err := h.answer(g, e, challenge, code)
	must.Succeed(h.t, err)
	return up
}

func (h *house) signedIn(email string) flow.Grant {
	h.t.Helper()
	g, err := h.SignInPassword(h.t.Context(), browser, account.Password{Email: email, Password: "sesame"})
	must.Succeed(h.t, err)
	return g
}

// level are a grant's aal and amr methods, newest first.
func (h *house) level(g flow.Grant) string {
	h.t.Helper()
	c := h.caller(g).Claims
	list := []string{c.AAL}
	for _, m := range c.AMR {
		list = append(list, m.Method)
	}
	return strings.Join(list, " ")
}
