package provider

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"gatehouse/auth/internal/token"
)

// idToken is a verified ID token: signed by its issuer, not expired, and issued for us.
type idToken struct {
	*token.Foreign
	claims jsonObject
}

// want has the requirements for the claims of an ID token.
type want struct {
	audiences []string // one of them
	single    bool     // with several audiences, azp must be our client id
	nonce     string   // "": not compared
	demanded  bool     // a token without a nonce is refused too
	access    string   // the access token of the same answer; compared if the token has at_hash
}

// The reasons why a token with a valid signature is refused.
var (
	errSubject  = errors.New("the ID token has no sub")
	errAudience = errors.New("the ID token is for another audience")
	errNonce    = errors.New("the ID token's nonce is not the one that was sent")
	errHash     = errors.New("the ID token belongs to another access token")
)

// verify parses and checks an ID token.
func (p *Provider) verify(ctx context.Context, t trust, text string, w want) (*idToken, error) {
	id, err := p.issuers.verified(ctx, t, text)
	if err != nil {
		return nil, err
	}
	switch {
	case w.access != "" && id.AccessTokenHash != "" && !id.HashesAccessToken(w.access):
		return nil, errHash
	case id.Subject == "":
		return nil, errSubject
	case !slices.ContainsFunc(id.Audience,
		func(aud string) bool { return aud != "" && slices.Contains(w.audiences, aud) }):
		return nil, errAudience
	case w.single && len(id.Audience) > 1 && !slices.Contains(w.audiences, id.AuthorizedParty):
		return nil, errAudience
	}
	claims, err := decodeObject([]byte(id.Payload))
	if err != nil {
		return nil, err
	}
	if !w.repeated(id.Nonce, claims) {
		return nil, errNonce
	}
	return &idToken{id, claims}, nil
}

// repeated reports whether a token's nonce is the one that was sent. Tokens of built-in providers may have no nonce:
// PKCE binds the code to the browser's sign-in, or the provider does not support nonces. A nonce is required of custom
// providers by OpenID Connect Core 1.0, section 3.1.3.7, and of Apple if the claim nonce_supported is true.
func (w want) repeated(nonce string, claims jsonObject) bool {
	if w.nonce == "" || nonce == w.nonce {
		return true
	}
	return nonce == "" && !w.demanded && !claims.isTrueOrText("nonce_supported")
}

// trust returns the issuer of the provider's ID tokens. The zero trust accepts no token.
func (p *Provider) trust() trust {
	if p.trusts != nil {
		return p.trusts(p)
	}
	if p.client.URL != "" { // the operator's base URL is the only issuer
		return trust{issuer: p.resolve(p.row.issuer)}
	}
	return trust{issuer: p.row.issuer, also: p.also}
}

// fromIDToken returns the profile from the ID token in the token endpoint's answer.
func fromIDToken(ctx context.Context, s *signIn) (Profile, error) { return s.idProfile(ctx, s.trust()) }

func (s *signIn) idProfile(ctx context.Context, t trust) (Profile, error) {
	text := s.idToken()
	if text == "" {
		return Profile{}, fmt.Errorf("%s: no OIDC ID token present in response", s.name)
	}
	id, err := s.verify(ctx, t, text, want{
		audiences: []string{s.clientID()}, single: true, nonce: s.keep.Nonce, demanded: s.demanded,
		access: s.token.AccessToken,
	})
	if err != nil {
		return Profile{}, fmt.Errorf("ID token: %w", err)
	}
	return s.idData(id), nil
}

// idData returns the profile from an ID token.
func (p *Provider) idData(id *idToken) Profile {
	d := Profile{Subject: id.Subject, Data: map[string]any{}}
	d.set("iss", id.Issuer)
	p.claim(p, id, &d)
	return d
}

// fingerprint returns a hash that identifies an ID token: of its jti or, without one, of the signed text. The signature
// is not used, since anyone can derive a second valid ECDSA signature (r and n-s) from the first. The nonce is not
// used, since an application may send the same nonce at all sign-ins.
func fingerprint(id *idToken) []byte {
	h := sha256.New()
	kind, part := "signed", id.Input()
	if id.ID != "" {
		kind, part = "jti", id.ID
	}
	fmt.Fprintf(h, "%d:%s%s:%s", len(id.Issuer), id.Issuer, kind, part)
	return h.Sum(nil)
}
