package httpapi

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/passkey"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

var noPasskeys = newProblem(404, refusal.CodePasskeyDisabled, "Passkeys are disabled")

// hidesPasskeys reports whether the path of the request is below /passkeys, whether it exists or not, while passkeys
// are switched off. Such a request is refused without reading it.
func (c *call) hidesPasskeys() bool {
	path := c.r.URL.Path
	return (path == "/passkeys" || under(path, "/passkeys")) && !c.live.flows.Passkeys.Enabled
}

// registers is a guard for both steps of a registration: it counts the request and checks the assurance level of the
// caller, before the body is read.
func (s *Server) registers(by routeLimit, h func(*call, flow.Principal) error) handler {
	return s.member(func(c *call, principal flow.Principal) error {
		if err := s.limit(c, by); err != nil {
			return err
		}
		if err := passkey.CheckLevel(principal); err != nil {
			return err
		}
		return h(c, principal)
	})
}

func (s *Server) postRegistrationOptions(c *call, principal flow.Principal) error {
	if err := c.decodeGiven(&struct{}{}); err != nil {
		return err
	}
	o, err := s.passkeys.RegistrationOptions(c.ctx(), c.requestInfo(), principal)
	if err != nil {
		return err
	}
	return writeCeremony(c, o)
}

func (s *Server) postRegistrationVerify(c *call, principal flow.Principal) error {
	answer, err := c.passkeyAnswer()
	if err != nil {
		return err
	}
	return c.passkeyView(s.passkeys.Register(c.ctx(), c.requestInfo(), principal, answer))
}

func (s *Server) postPasskeyOptions(c *call) error {
	if err := c.decode(&struct{}{}); err != nil {
		return err
	}
	return writeCeremony(c, s.passkeys.SignInOptions(c.requestInfo()))
}

func (s *Server) postPasskeyVerify(c *call) error {
	answer, err := c.passkeyAnswer()
	if err != nil {
		return err
	}
	return c.grantView(s.passkeys.SignIn(c.ctx(), c.requestInfo(), answer))
}

// passkeyAnswer reads an authenticator's answer to a challenge from the body.
func (c *call) passkeyAnswer() (passkey.Answer, error) {
	var in struct {
		ChallengeID string          `json:"challenge_id"`
		Credential  json.RawMessage `json:"credential"`
	}
	if err := c.decode(&in); err != nil {
		return passkey.Answer{}, err
	}
	if in.ChallengeID == "" {
		return passkey.Answer{}, invalidRequest("challenge_id is required")
	}
	if len(in.Credential) == 0 || string(in.Credential) == "null" {
		return passkey.Answer{}, invalidRequest("credential is required")
	}
	id, err := uuid.Parse(in.ChallengeID)
	if err != nil || len(in.ChallengeID) != 36 {
		return passkey.Answer{}, invalidRequest("challenge_id must be a valid UUID")
	}
	return passkey.Answer{Challenge: id, Credential: in.Credential}, nil
}

func writeCeremony[T any](c *call, o passkey.Ceremony[T]) error {
	options, err := json.Marshal(o.Options)
	if err != nil {
		return err
	}
	b := appendID(append(make([]byte, 0, 128+len(options)), `{"challenge_id":`...), o.Challenge)
	b = append(append(b, `,"options":`...), options...)
	b = strconv.AppendInt(append(b, `,"expires_at":`...), o.Expires.Unix(), 10)
	return c.json(200, append(b, '}'))
}

// appendPasskey appends a passkey as JSON, in the same form in all answers.
func appendPasskey(b []byte, p *store.Credential) []byte {
	b = appendID(append(b, `{"id":`...), p.ID)
	b = fieldString(b, `,"friendly_name":`, p.FriendlyName)
	b = appendTime(append(b, `,"created_at":`...), p.CreatedAt)
	if !p.LastUsedAt.IsZero() {
		b = appendTime(append(b, `,"last_used_at":`...), p.LastUsedAt)
	}
	return append(b, '}')
}

func (c *call) passkeyView(p store.Credential, err error) error {
	if err != nil {
		return err
	}
	return c.json(200, appendPasskey(nil, &p))
}

func (c *call) passkeysView(list []store.Credential, err error) error {
	if err != nil {
		return err
	}
	return c.json(200, appendList(nil, list, appendPasskey))
}

func (s *Server) getPasskeys(c *call, principal flow.Principal) error {
	return c.passkeysView(s.passkeys.List(c.ctx(), principal.User.ID))
}

// pathPasskey parses the passkey's ID in the path. An ID that is not a UUID is answered like an unknown passkey.
func (c *call) pathPasskey() (uuid.UUID, error) {
	id, err := c.pathID("passkey_id")
	if err != nil {
		return id, passkey.ErrNotFound
	}
	return id, nil
}

// maxPasskeyName is the maximum length in characters of a passkey's name.
const maxPasskeyName = 120

func (s *Server) patchPasskey(c *call, principal flow.Principal) error {
	id, err := c.pathPasskey()
	if err != nil {
		return err
	}
	var in struct {
		FriendlyName string `json:"friendly_name"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if in.FriendlyName == "" {
		return invalidRequest("friendly_name is required")
	}
	if utf8.RuneCountInString(in.FriendlyName) > maxPasskeyName {
		return invalidRequest("friendly_name must be 120 characters or less")
	}
	return c.passkeyView(s.passkeys.Rename(c.ctx(), c.requestInfo(), principal, id, in.FriendlyName))
}

func (s *Server) deletePasskey(c *call, principal flow.Principal) error {
	if err := passkey.CheckLevel(principal); err != nil {
		return err
	}
	id, err := c.pathPasskey()
	if err == nil {
		err = s.passkeys.Delete(c.ctx(), c.requestInfo(), principal, id)
	}
	return c.noContent(err)
}

func (s *Server) getAdminPasskeys(c *call, _ flow.Actor, user uuid.UUID) error {
	return c.passkeysView(s.passkeys.AdminList(c.ctx(), user))
}

func (s *Server) deleteAdminPasskey(c *call, by flow.Actor, user uuid.UUID) error {
	id, err := c.pathPasskey()
	if err == nil {
		err = s.passkeys.AdminDelete(c.ctx(), c.requestInfo(), by, user, id)
	}
	return c.noContent(err)
}
