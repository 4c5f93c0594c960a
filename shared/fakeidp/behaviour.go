package fakeidp

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Behaviour says how a dialect deviates from correct behaviour. The zero value is correct behaviour.
type Behaviour struct {
	// Deny redirects the browser back with error=access_denied or, in OAuth 1.0a, with denied.
	Deny bool
	// ResponseIssuer is sent as the parameter iss together with the code. "-" means that no iss is sent, even if the
	// dialect sends one.
	ResponseIssuer string
	// Claims changes the claims of ID tokens before they are signed, for example to a wrong iss, aud, nonce, exp or
	// tenant.
	Claims func(map[string]any)
	// Header changes the header of ID tokens before they are signed, for example kid, typ or crit.
	Header func(map[string]any)
	// Alg is the algorithm with which ID tokens are signed, if not empty. "none" leaves out the signature. "HS256" uses
	// the PEM form of the public RSA key as the secret, which is the well-known confusion attack.
	Alg string
	// Forged makes ID tokens be signed with a key that is not published, with the kid of a published key.
	Forged bool
	// NoIDToken makes token responses have no ID token.
	NoIDToken bool
	// FormToken makes token responses be encoded as a form, as GitHub does if the header Accept does not request JSON.
	FormToken bool
	// Token changes the token response before it is sent.
	Token func(map[string]any)
	// Discovery changes the discovery document before it is sent.
	Discovery func(map[string]any)
	// Answers has responses that replace the usual ones, by path, such as "/user/emails". "token", "keys" and
	// "discovery" stand for these endpoints in any dialect.
	Answers map[string]Answer
}

// Answer is a prepared HTTP response.
type Answer struct {
	Status int // 0 means 200
	Type   string
	Body   string
	Header http.Header
	Delay  time.Duration // delay before anything is sent; it ends early if the client disconnects
	Size   int           // number of bytes of white space that precede Body
}

// These are responses of providers that fail.
var (
	NotJSON     = Answer{Type: "text/html", Body: "<html><body>We'll be back soon.</body></html>"}
	ServerError = Answer{Status: http.StatusInternalServerError, Type: "application/json",
		Body: `{"error":"server_error"}`}
	Unauthorized = Answer{Status: http.StatusUnauthorized, Type: "application/json", Body: `{"error":"invalid_client"}`}
	// FailedWith200 is the response of GitHub to an invalid code.
	FailedWith200 = Answer{Type: "application/json",
		Body: `{"error":"bad_verification_code","error_description":"The code passed is incorrect or expired."}`}
	NotOK     = Answer{Type: "application/json", Body: `{"ok":false,"error":"invalid_code"}`}
	Oversized = Answer{Type: "application/json", Size: 1 << 20, Body: "{}"}
)

// Slow returns a response that is sent after a delay.
func Slow(d time.Duration) Answer { return Answer{Type: "application/json", Body: "{}", Delay: d} }

// Redirect returns a redirect. With status 307, the client repeats the method and body.
func Redirect(status int, to string) Answer {
	return Answer{Status: status, Header: http.Header{"Location": {to}}}
}

// JSON returns a response with status 200 and a formatted body.
func JSON(format string, args ...any) Answer {
	return Answer{Type: "application/json", Body: fmt.Sprintf(format, args...)}
}

func (a Answer) write(w http.ResponseWriter, r *http.Request) {
	if a.Delay > 0 {
		select {
		case <-time.After(a.Delay):
		case <-r.Context().Done():
			return
		}
	}
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	if a.Type != "" {
		w.Header().Set("Content-Type", a.Type)
	}
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	for left := a.Size; left > 0; left -= 1 << 16 {
		if _, err := io.WriteString(w, strings.Repeat(" ", min(left, 1<<16))); err != nil {
			return
		}
	}
	io.WriteString(w, a.Body)
}
