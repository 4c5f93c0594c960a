package httpapi

import (
	"encoding/json"
	"strconv"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// member is a guard that requires a user who is not anonymous: anonymous users cannot have second factors.
func (s *Server) member(h func(*call, flow.Principal) error) handler {
	return s.user(flow.Full, func(c *call, principal flow.Principal) error {
		if principal.User.IsAnonymous {
			return newProblem(403, refusal.CodeNoAuthorization, "Anonymous user not allowed to perform these actions")
		}
		return h(c, principal)
	})
}

// forwardedClient returns what flows need to know about the client. TrustedIP is set if a trusted header has the
// client's address. A challenge and its answer must come from the same address, which can only be compared if both
// addresses are trusted.
func (c *call) forwardedClient() flow.RequestInfo {
	out := c.requestInfo()
	if ip, ok := forwardedIP(&c.live.Settings, c.r); ok {
		out.TrustedIP = ip.String()
	}
	return out
}

// postFactor enrolls a second factor.
func (s *Server) postFactor(c *call, principal flow.Principal) error {
	if err := s.limit(c, byEnroll); err != nil {
		return err
	}
	var in factor.Enrolment
	if err := c.decode(&in); err != nil {
		return err
	}
	e, err := s.factors.EnrollFactor(c.ctx(), c.requestInfo(), principal, in)
	if err != nil {
		return err
	}
	b := appendID(append(make([]byte, 0, 512+len(e.QRCode)*5/4), `{"id":`...), e.Factor.ID)
	b = jsontext.AppendString(append(b, `,"type":`...), string(e.Factor.Kind))
	b = jsontext.AppendString(append(b, `,"friendly_name":`...), e.Factor.FriendlyName)
	if e.Factor.Kind == store.FactorWebAuthn {
		return c.json(200, append(b, '}'))
	}
	if e.Factor.Kind == store.FactorPhone {
		b = jsontext.AppendString(append(b, `,"phone":`...), e.Phone)
		return c.json(200, append(b, '}'))
	}
	b = jsontext.AppendString(append(b, `,"totp":{"qr_code":`...), e.QRCode)
	b = jsontext.AppendString(append(b, `,"secret":`...), e.Secret)
	b = jsontext.AppendString(append(b, `,"uri":`...), e.URI)
	return c.json(200, append(b, '}', '}'))
}

// postChallenge creates a challenge of a factor and, for a phone, sends a code. The body may be empty.
func (s *Server) postChallenge(c *call, principal flow.Principal, id uuid.UUID) error {
	if err := s.limit(c, byChallenge); err != nil {
		return err
	}
	var in struct {
		Channel  string      `json:"channel"`
		WebAuthn flow.Object `json:"webauthn"`
	}
	if err := c.decodeGiven(&in); err != nil {
		return err
	}
	if in.WebAuthn != nil && !c.live.flows.Factors.WebAuthn.Verify {
		return errNoWebAuthn
	}
	ch, f, err := s.factors.ChallengeFactor(c.ctx(), c.forwardedClient(), principal, id, in.Channel)
	if err != nil {
		return err
	}
	b := appendID(append(make([]byte, 0, 128), `{"id":`...), ch.ID)
	b = jsontext.AppendString(append(b, `,"type":`...), string(f.Kind))
	b = strconv.AppendInt(append(b, `,"expires_at":`...), ch.ExpiresAt.Unix(), 10)
	if f.Kind != store.FactorWebAuthn {
		return c.json(200, append(b, '}'))
	}
	kind, options, err := s.factors.WebAuthnOptions(c.ctx(), c.requestInfo(), principal, f, ch.ID)
	if err != nil {
		return err
	}
	text, err := json.Marshal(options)
	if err != nil {
		return err
	}
	b = jsontext.AppendString(append(b, `,"webauthn":{"type":`...), kind)
	b = append(append(b, `,"credential_options":{"publicKey":`...), text...)
	return c.json(200, append(b, '}', '}', '}'))
}

// errNoWebAuthn refuses both steps of a WebAuthn ceremony while security keys are switched off.
var errNoWebAuthn = newProblem(422, refusal.CodeWebAuthnVerifyDisabled, "MFA verification is disabled for WebAuthn")

// postFactorVerify checks the answer to a factor's challenge.
func (s *Server) postFactorVerify(c *call, principal flow.Principal, id uuid.UUID) error {
	if err := s.limit(c, byFactorVerify); err != nil {
		return err
	}
	var in struct {
		ChallengeID string `json:"challenge_id"`
		Code        string `json:"code"`
		WebAuthn    *struct {
			Type       string          `json:"type"`
			Credential json.RawMessage `json:"credential_response"`
		} `json:"webauthn"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if in.WebAuthn != nil && !c.live.flows.Factors.WebAuthn.Verify {
		return errNoWebAuthn
	}
	challenge, err := uuid.Parse(in.ChallengeID)
	if in.ChallengeID != "" && (err != nil || len(in.ChallengeID) != 36) {
		return invalidRequest("challenge_id must be an UUID")
	}
	answer := flow.FactorAnswer{Factor: id, Challenge: challenge, Code: in.Code}
	if in.WebAuthn != nil {
		answer.WebAuthn = &flow.WebAuthnAnswer{Type: in.WebAuthn.Type, Credential: in.WebAuthn.Credential}
	}
	return c.grantView(s.factors.VerifyFactor(c.ctx(), c.forwardedClient(), principal, answer))
}

// deleteFactor unenrolls a factor.
func (s *Server) deleteFactor(c *call, principal flow.Principal, id uuid.UUID) error {
	if err := s.factors.UnenrollFactor(c.ctx(), c.requestInfo(), principal, id); err != nil {
		return err
	}
	return c.json(200, append(appendID(append(make([]byte, 0, 64), `{"id":`...), id), '}'))
}

// appendFactor appends a second factor as JSON, in the same form in all answers: without its secret.
func appendFactor(b []byte, f *store.Factor) []byte {
	b = appendID(append(b, `{"id":`...), f.ID)
	b = appendTime(append(b, `,"created_at":`...), f.CreatedAt)
	b = appendTime(append(b, `,"updated_at":`...), f.UpdatedAt)
	if f.Verified() {
		b = append(b, `,"status":"verified"`...)
	} else {
		b = append(b, `,"status":"unverified"`...)
	}
	b = fieldString(b, `,"friendly_name":`, f.FriendlyName)
	b = jsontext.AppendString(append(b, `,"factor_type":`...), string(f.Kind))
	b = jsontext.AppendString(append(b, `,"phone":`...), f.Phone)
	b = append(b, `,"last_challenged_at":`...)
	if f.LastChallengedAt.IsZero() {
		return append(b, `null}`...)
	}
	return append(appendTime(b, f.LastChallengedAt), '}')
}
