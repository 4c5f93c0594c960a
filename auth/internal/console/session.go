package console

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// request is a request of a signed-in user. refused is flow.ErrAdminAAL2 until the user has verified a second factor
// that is required.
type request struct {
	httpapi.ConsoleCall
	w         http.ResponseWriter
	r         *http.Request
	ticket    ticket
	principal flow.Principal
	actor     flow.Actor
	refused   error
}

// signedIn is a guard that requires a cookie with its key, used within the last 30 minutes, and a session whose user
// may still administer. Only the second factor may be missing.
func (s *Console) signedIn(h func(*request) error) func(http.ResponseWriter, *http.Request,
	httpapi.ConsoleCall) error {
	return func(w http.ResponseWriter, r *http.Request, c httpapi.ConsoleCall) (err error) {
		q := &request{ConsoleCall: c, w: w, r: r}
		if q.ticket, err = s.ticketOf(r); err != nil {
			return err
		}
		now := s.Now()
		if q.ticket.idle(now) > idleLimit {
			return errIdle
		}
		q.principal, q.actor, err = s.Core.AuthenticateConsole(c.Context(), q.ticket.User, q.ticket.Session,
			int(q.ticket.AAL))
		if err != nil && !errors.Is(err, flow.ErrAdminAAL2) {
			c.Refused(q.actor, err)
			return err
		}
		q.refused = err
		c.By(q.principal)
		if q.ticket.idle(now) >= renewAfter {
			q.ticket.Used = now.Unix()
			s.setCookie(w, r, s.seal(&q.ticket))
		}
		return h(q)
	}
}

// begin gives the browser a new cookie, at the session's assurance level, and returns the key that belongs to it.
func (s *Console) begin(w http.ResponseWriter, r *http.Request, v store.Session) string {
	key := newKey()
	s.setCookie(w, r, s.seal(&ticket{User: v.UserID, Session: v.ID, AAL: byte(v.AAL), Used: s.Now().Unix(),
		Key: sha256.Sum256([]byte(key))}))
	return key
}

func (s *Console) postSession(w http.ResponseWriter, r *http.Request, c httpapi.ConsoleCall) error {
	var in struct{ Email, Phone, Password string }
	if err := c.Decode(&in); err != nil {
		return err
	}
	u, v, err := s.accounts.SignInConsole(c.Context(), c.Client(), account.Password(in))
	if err != nil {
		return err
	}
	c.By(flow.Principal{User: u})
	return c.JSON(http.StatusOK, s.sessionView(u, v, s.begin(w, r, v)))
}

// getSession answers who is signed in.
func (s *Console) getSession(q *request) error {
	if q.refused != nil && !flow.IsBelowAAL2(q.principal.User, q.principal.Session) {
		return q.refused // the user has no factor that could be verified
	}
	return q.JSON(http.StatusOK, s.sessionView(q.principal.User, q.principal.Session, ""))
}

// deleteSession signs the user out, even after idleLimit.
func (s *Console) deleteSession(w http.ResponseWriter, r *http.Request, c httpapi.ConsoleCall) error {
	t, err := s.ticketOf(r)
	if err != nil {
		return err
	}
	if err := s.accounts.SignOutConsole(c.Context(), c.Client(), t.User, t.Session); err != nil {
		return err
	}
	s.setCookie(w, r, "")
	return c.NoContent(nil)
}

func (s *Console) postChallenge(q *request) error {
	var in struct {
		Factor uuid.UUID `json:"factor_id"`
	}
	if err := q.Decode(&in); err != nil {
		return err
	}
	ch, f, err := s.factors.ChallengeFactor(q.Context(), q.Client(), q.principal, in.Factor, "")
	if err != nil {
		return err
	}
	b := jsontext.AppendString([]byte(`{"id":`), ch.ID.String())
	b = jsontext.AppendString(append(b, `,"type":`...), string(f.Kind))
	b = strconv.AppendInt(append(b, `,"expires_at":`...), ch.ExpiresAt.Unix(), 10)
	return q.JSON(http.StatusOK, append(b, '}'))
}

// postVerify verifies a second factor and raises the session, which gets a new cookie and key.
func (s *Console) postVerify(q *request) error {
	var in struct {
		Factor    uuid.UUID `json:"factor_id"`
		Challenge uuid.UUID `json:"challenge_id"`
		Code      string    `json:"code"`
	}
	if err := q.Decode(&in); err != nil {
		return err
	}
	err := s.factors.VerifyFactorConsole(q.Context(), q.Client(), q.principal,
		flow.FactorAnswer{Factor: in.Factor, Challenge: in.Challenge, Code: in.Code})
	if err != nil {
		return err
	}
	v := q.principal.Session
	v.AAL = 2
	return q.JSON(http.StatusOK, s.sessionView(q.principal.User, v, s.begin(q.w, q.r, v)))
}

// sessionView returns the JSON of a sign-in: the next step, the factors that can be verified, the user, and when it
// ends.
func (s *Console) sessionView(u store.User, v store.Session, key string) []byte {
	b := []byte{'{'}
	if key != "" {
		b = append(jsontext.AppendString(append(b, `"key":`...), key), ',')
	}
	next, factors := `null`, []store.Factor(nil)
	if flow.IsBelowAAL2(u, v) {
		next = `"factor"`
		factors = slices.DeleteFunc(slices.Clone(u.Factors), func(f store.Factor) bool {
			return !f.Verified() || f.Kind != store.FactorTOTP && f.Kind != store.FactorPhone
		})
	}
	b = append(append(b, `"next":`+next+`,"factors":`...), '[')
	for i, f := range factors {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsontext.AppendString(append(b, `{"id":`...), f.ID.String())
		b = jsontext.AppendString(append(b, `,"factor_type":`...), string(f.Kind))
		b = append(jsontext.AppendString(append(b, `,"friendly_name":`...), f.FriendlyName), '}')
	}
	b = jsontext.AppendString(append(b, `],"user":{"id":`...), u.ID.String())
	b = jsontext.AppendString(append(b, `,"email":`...), u.Email)
	until := v.NotAfter
	if box := s.Core.Live().Sessions.Timebox; box > 0 && v.CreatedAt.Add(box).Before(until) {
		until = v.CreatedAt.Add(box)
	}
	return append(strconv.AppendInt(append(b, `},"expires_at":`...), until.Truncate(time.Second).Unix(), 10), '}')
}
