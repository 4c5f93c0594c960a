package provider

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/token"
)

// IDTokenRequest is a sign-in with an ID token that an application got from a provider by itself. If Provider is empty,
// ClientID and Issuer name the provider.
type IDTokenRequest struct {
	IDToken     string `json:"id_token"`
	Provider    string `json:"provider"`
	AccessToken string `json:"access_token"`
	Nonce       string `json:"nonce"`
	ClientID    string `json:"client_id"`
	Issuer      string `json:"issuer"`
}

// Accepted identifies an accepted ID token until the token expires, so that the caller can refuse it if it is used
// again.
type Accepted struct {
	Key   []byte // hash of issuer and jti or, without a jti, of the signed text
	Until time.Time
}

// native are the built-in providers whose ID tokens are accepted. ID tokens of custom providers are accepted too.
var native = []string{"apple", "google", "azure", "facebook", "keycloak", "snapchat"}

// IDToken verifies a native ID token. The settings decide which issuers are accepted; the request only chooses among
// them. Errors are of type *OAuthError or *Error, with texts for the answer. If an issuer cannot be reached, the error
// is an *Error with status 500.
func (s *Set) IDToken(ctx context.Context, r IDTokenRequest) (Profile, *Accepted, error) {
	if r.IDToken == "" {
		return refuseToken("id_token required", nil)
	}
	if r.Provider == "" && (r.ClientID == "" || r.Issuer == "") {
		return refuseToken("provider or client_id and issuer required", nil)
	}
	p := s.nativeProvider(r)
	if p == nil {
		name := cmp.Or(r.Provider, r.Issuer)
		return Profile{}, nil, invalid(fmt.Sprintf("Custom OIDC provider \"%.200s\" not allowed", name))
	}
	t, issuer, err := p.nativeTrust(r)
	if err != nil {
		return Profile{}, nil, err
	}
	if !p.client.Enabled {
		return Profile{}, nil, &Error{Status: http.StatusBadRequest, Code: "provider_disabled",
			Message: fmt.Sprintf("Provider (issuer %q) is not enabled", issuer)}
	}
	audiences := p.client.ClientIDs
	if p.id == "apple" && s.iosApp != "" {
		audiences = append(slices.Clone(audiences), s.iosApp)
	}
	id, err := p.verify(p.calling(ctx), t, r.IDToken, want{audiences: audiences, access: r.AccessToken})
	var away *unreachableError
	switch {
	case errors.As(err, &away):
		return Profile{}, nil, unreachable(err)
	case errors.Is(err, errSubject):
		return refuseToken("Missing sub claim in id_token", err)
	case errors.Is(err, errAudience):
		return refuseToken(
			"Unacceptable audience in id_token: ["+strings.Join(audiencesOf(r.IDToken), " ")+"]", err)
	case err != nil:
		return refuseToken("Bad ID token", err)
	}
	// An application that uses Facebook chooses the nonce and sends it to Facebook unhashed, so checkNonce, which
	// compares hashes, cannot be used.
	if !p.client.SkipNonceCheck && p.id != "facebook" {
		if err := checkNonce(id.Nonce, r.Nonce); err != nil {
			return Profile{}, nil, err
		}
	}
	d := p.idData(id)
	if err := p.complete(&d); err != nil {
		return refuseToken("Bad ID token", err)
	}
	return d, &Accepted{Key: fingerprint(id), Until: time.Unix(id.ExpiresAt, 0)}, nil
}

func refuseToken(description string, err error) (Profile, *Accepted, error) {
	return Profile{}, nil, &OAuthError{Code: "invalid request", Description: description, Err: err}
}

func invalid(message string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "validation_failed", Message: message}
}

// audiencesOf returns the audiences of a token that was refused although its signature is valid.
func audiencesOf(text string) []string {
	t, err := token.ParseForeign(text)
	if err != nil {
		return nil
	}
	return t.Audience[:min(len(t.Audience), 10)]
}

// checkNonce compares the nonce in the token with the hash of the nonce in the request: the application sends the
// provider the hash of its nonce, and this daemon the nonce itself.
func checkNonce(inToken, given string) error {
	if (inToken == "") != (given == "") {
		return &OAuthError{Code: "invalid request",
			Description: "Passed nonce and nonce in id_token should either both exist or not."}
	}
	sum := sha256.Sum256([]byte(given))
	if inToken != "" && subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(inToken)) != 1 {
		return &OAuthError{Code: "invalid nonce", Description: "Nonces mismatch"}
	}
	return nil
}

// nativeProvider returns the provider that a request names, by its name or its issuer, even if the provider is off.
func (s *Set) nativeProvider(r IDTokenRequest) *Provider {
	name, custom := plainName(r.Provider)
	for _, p := range s.own {
		if p.id != "" && (custom || !slices.Contains(native, p.id)) {
			continue
		}
		if name == p.name || p.isIssuer(r.Provider) || r.Provider == "" && p.isIssuer(r.Issuer) {
			return p
		}
	}
	return nil
}

// isIssuer reports whether name is an issuer of this provider. A Keycloak that is switched off has no issuer.
func (p *Provider) isIssuer(name string) bool {
	switch {
	case name == "":
		return false
	case p.id == "azure":
		return name == p.trust().issuer || azureIssuer().MatchString(name) || azureOld().MatchString(name)
	case p.id == "keycloak" && !p.client.Enabled:
		return false
	}
	return p.trust().accepts(name)
}

// nativeTrust returns the trust in the issuer that a token must have, and the issuer's name for the answer. Apple and
// Azure have several issuers: the token names one of those that the settings allow.
func (p *Provider) nativeTrust(r IDTokenRequest) (trust, string, error) {
	t := p.trust()
	label := map[string]string{"apple": "Apple", "azure": "Azure"}[p.id]
	if label == "" {
		return t, t.issuer, nil
	}
	unverified, err := token.ParseForeign(r.IDToken)
	if err != nil || unverified.Issuer == "" {
		return t, "", invalid("Unable to detect issuer in ID token for " + label + " provider")
	}
	found := unverified.Issuer
	if p.id == "azure" {
		t, err = azureTrusts(p, found, true)
	} else if !t.accepts(found) {
		err = errIssuerNotAllowed
	}
	if err != nil {
		return t, "", invalid("Detected ID token issuer is not an " + label + " ID token issuer")
	}
	if r.Issuer != "" && r.Issuer != found {
		return t, "", invalid("Provided issuer does not match ID token issuer")
	}
	return t, found, nil
}
