package fakeidp

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Behaviour is how a dialect misbehaves. The zero value behaves correctly.
type Behaviour struct {
	// Deny sends the browser back with error=access_denied (OAuth 1.0a: denied).
	Deny bool
	// ResponseIssuer is sent as iss with the code; "-" sends none where the dialect sends one.
	ResponseIssuer string
	// Claims changes the claims of ID tokens before they are signed: wrong iss, aud, nonce, exp, tenant ...
	Claims func(map[string]any)
	// Header changes the header of ID tokens before they are signed: kid, typ, crit ...
	Header func(map[string]any)
	// Alg signs ID tokens with another algorithm. "none": no signature. "HS256": with the PEM of the public
	// RSA key as secret, the old confusion attack.
	Alg string
	// Forged signs ID tokens with an unpublished key, under the kid of a published key.
	Forged bool
	// NoIDToken leaves the ID token out of the token response.
	NoIDToken bool
	// FormToken encodes the token response as a form, as GitHub does without an Accept header for JSON.
	FormToken bool
	// Token changes the token response.
	Token func(map[string]any)
	// Discovery changes the discovery document.
	Discovery func(map[string]any)
	// Answers replace the responses at a path, such as "/user/emails". "token", "keys" and "discovery" are the
	// endpoints of every dialect.
	Answers map[string]Answer
}

// Answer is a prepared response.
type Answer struct {
	Status int // 0: 200
	Type   string
	Body   string
	Header http.Header
	Delay  time.Duration // before anything is sent; ends when the client leaves
	Size   int           // bytes of white space before Body
}

// Responses of failing providers.
var (
	NotJSON     = Answer{Type: "text/html", Body: "<html><body>We'll be back soon.</body></html>"}
	ServerError = Answer{Status: http.StatusInternalServerError, Type: "application/json",
		Body: `{"error":"server_error"}`}
	Unauthorized = Answer{Status: http.StatusUnauthorized, Type: "application/json", Body: `{"error":"invalid_client"}`}
	// FailedWith200 is GitHub's response to an invalid code.
	FailedWith200 = Answer{Type: "application/json",
		Body: `{"error":"bad_verification_code","error_description":"The code passed is incorrect or expired."}`}
	NotOK     = Answer{Type: "application/json", Body: `{"ok":false,"error":"invalid_code"}`}
	Oversized = Answer{Type: "application/json", Size: 1 << 20, Body: "{}"}
)

// Slow returns a delayed response.
func Slow(d time.Duration) Answer { return Answer{Type: "application/json", Body: "{}", Delay: d} }

// Redirect returns a redirect; status 307 keeps method and body.
func Redirect(status int, to string) Answer {
	return Answer{Status: status, Header: http.Header{"Location": {to}}}
}

// JSON returns a response with status 200.
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
