package provider

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"golang.org/x/oauth2"

	"gatehouse/auth/internal/outbound"
)

// Error is the error of a failed sign-in in a browser. It is also the error of a failed request with an ID token,
// except when the token itself is refused: that is an OAuthError. Status, Code and Message are for the answer. Err is
// for the log, and contains no secret either.
type Error struct {
	Status  int
	Code    string // "" if there is none
	Message string
	// OAuth is the parameter error of the redirect to the application if the provider itself has refused the sign-in;
	// "": it follows from Status.
	OAuth string
	Err   error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// OAuthError is a failure that is answered as in RFC 6749: status 400, with error and error_description.
type OAuthError struct {
	Code, Description string
	Err               error // for the log
}

func (e *OAuthError) Error() string {
	if e.Err != nil {
		return e.Code + ": " + e.Description + ": " + e.Err.Error()
	}
	return e.Code + ": " + e.Description
}

func (e *OAuthError) Unwrap() error { return e.Err }

func badCallback(message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "bad_oauth_callback", Message: message}
}

// unexpected returns the Error of a failure of the provider or of this daemon.
func unexpected(message string, err error) *Error {
	return &Error{Status: http.StatusInternalServerError, Code: "unexpected_failure", Message: message,
		Err: withoutDescription(err)}
}

func unreachable(err error) *Error { return unexpected("Error reaching the external provider", err) }

func noExchange(err error) *Error { return unexpected("Unable to exchange external code", err) }

func noProfile(err error) *Error {
	return unexpected("Error getting user profile from external provider", err)
}

// withoutDescription returns err without parts that must not be logged: the query of a URL, which contains secrets, and
// the body of a token endpoint's answer, in which some providers repeat the code.
func withoutDescription(err error) error {
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) {
		status := 0
		if refused.Response != nil {
			status = refused.Response.StatusCode
		}
		if refused.ErrorCode != "" {
			return fmt.Errorf("the token endpoint answers %d, error %q", status, outbound.Word(refused.ErrorCode, 40))
		}
		return fmt.Errorf("the token endpoint answers %d", status)
	}
	var call *url.Error
	if errors.As(err, &call) {
		host := "?"
		if u, e := url.Parse(call.URL); e == nil {
			host = u.Host
		}
		return fmt.Errorf("%s %s: %w", call.Op, host, call.Err)
	}
	return err
}
