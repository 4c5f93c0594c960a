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
	// renewAfter is the age from which a request renews a cookie.
	renewAfter = time.Minute
	keyHeader  = "X-Console-Key"
)

// ticket is the content of the sealed cookie. A cookie alone is not enough, since the ports of a host share cookies:
// requests must also have the key, from the page's script storage, which ports do not share. A ticket acts at the lower
// of its own level and the session's, so that one from before the second factor is worth no more after it.
type ticket struct {
	User, Session uuid.UUID
	AAL           byte
	Used          int64 // Unix time
	Key           [sha256.Size]byte
}

// idle returns the time since the last request.
func (t *ticket) idle(now time.Time) time.Duration { return now.Sub(time.Unix(t.Used, 0)) }

var errNoSignIn = &refusal.Refusal{Kind: refusal.KindUnauthenticated, Code: refusal.CodeNoAuthorization,
	Msg: "Sign in to the console"}

var errIdle = &refusal.Refusal{Kind: refusal.KindUnauthenticated, Code: refusal.CodeSessionExpired,
	Msg: "Signed out after 30 minutes without a request"}

// newKey returns a new key, in the form that the page stores.
func newKey() string {
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// seal returns the cookie's value.
func (s *Console) seal(t *ticket) string {
	b, _ := binary.Append(nil, binary.BigEndian, t) // all fields have a fixed size
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

// ticketOf returns the request's sign-in: a cookie that can be opened, with the matching key. Another server of this
// host may have set cookies of the same name.
func (s *Console) ticketOf(r *http.Request) (ticket, error) {
	key := sha256.Sum256([]byte(r.Header.Get(keyHeader)))
	for _, c := range r.CookiesNamed(s.cookieName(r)) {
		if t, ok := s.open(c.Value); ok && subtle.ConstantTimeCompare(t.Key[:], key[:]) == 1 {
			return t, nil
		}
	}
	return ticket{}, errNoSignIn
}

// cookieName returns the cookie's name, which has the port, since the ports of a host share cookies.
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

// setCookie sets the browser's cookie, or deletes it if value is empty.
func (s *Console) setCookie(w http.ResponseWriter, r *http.Request, value string) {
	c := &http.Cookie{Name: s.cookieName(r), Value: value, Path: "/", HttpOnly: true, Secure: s.secure(),
		SameSite: http.SameSiteStrictMode}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}
