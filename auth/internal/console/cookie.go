package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
)

const (
	// idleLimit is how long a sign-in lasts without a request.
	idleLimit = 30 * time.Minute
	// renewAfter is the age from which a request renews the cookie.
	renewAfter = time.Minute
	keyHeader  = "X-Console-Key"
)

// ticket is the content of the cookie, which is encrypted. The cookie alone does not suffice, since all ports of a host
// share cookies: requests must also have the key, which is in the page's script storage, and ports do not share that. A
// ticket acts at the lower of its own assurance level and the session's, so a ticket from before the second factor
// gains nothing when the session is raised.
type ticket struct {
	User, Session uuid.UUID
	AAL           byte
	Used          int64 // Unix time
	Key           [sha256.Size]byte
}

// idle returns the time since the last request of the sign-in.
func (t *ticket) idle(now time.Time) time.Duration { return now.Sub(time.Unix(t.Used, 0)) }

var errNoSignIn = &refusal.Refusal{Kind: refusal.KindUnauthenticated, Code: refusal.CodeNoAuthorization,
	Msg: "Sign in to the console"}

var errIdle = &refusal.Refusal{Kind: refusal.KindUnauthenticated, Code: refusal.CodeSessionExpired,
	Msg: "Signed out after 30 minutes without a request"}

// newKey returns a new key, in the form in which the page stores it.
func newKey() string {
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// seal returns the value of the cookie: the encrypted ticket.
func (s *Console) seal(t *ticket) string {
	b, _ := binary.Append(nil, binary.BigEndian, t) // cannot fail, since all fields have a fixed size
	return base64.RawURLEncoding.EncodeToString(s.Root.Seal(secret.Console, b, nil))
}

func (s *Console) open(value string) (t ticket, ok bool) {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil {
		return t, false
	}
	b, _, err := s.Root.Open(secret.Console, sealed, nil)
	if err != nil {
		return t, false
	}
	n, err := binary.Decode(b, binary.BigEndian, &t)
	return t, err == nil && n == len(b)
}

// ticketOf returns the sign-in of a request: the content of a cookie that can be decrypted and whose key matches. There
// may be several cookies of this name, since another server on this host may have set one.
func (s *Console) ticketOf(r *http.Request) (ticket, error) {
	key := sha256.Sum256([]byte(r.Header.Get(keyHeader)))
	for _, c := range r.CookiesNamed(s.cookieName(r)) {
		if t, ok := s.open(c.Value); ok && subtle.ConstantTimeCompare(t.Key[:], key[:]) == 1 {
			return t, nil
		}
	}
	return ticket{}, errNoSignIn
}

// cookieName returns the name of the cookie. Over http it contains the port, since all ports of a host share cookies.
func (s *Console) cookieName(r *http.Request) string {
	if s.secure() {
		return "__Host-auth_console"
	}
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "80"
	}
	return "auth_console_" + port
}

// setCookie sets the cookie in the browser, or deletes it if value is "".
func (s *Console) setCookie(w http.ResponseWriter, r *http.Request, value string) {
	c := &http.Cookie{Name: s.cookieName(r), Value: value, Path: "/", HttpOnly: true, Secure: s.secure(),
		SameSite: http.SameSiteStrictMode}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}
