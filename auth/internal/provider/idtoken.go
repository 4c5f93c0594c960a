package provider

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"gatehouse/auth/internal/token"
)

// idToken is a verified ID token: signed by its issuer, in time, for us.
type idToken struct {
	*token.Foreign
	claims jsonObject
}

// want is what an ID token must say besides being genuine.
type want struct {
	audiences []string // one of them
	single    bool     // with several audiences, azp must be the one of ours
	nonce     string   // "": not compared
	demanded  bool     // a token without any nonce is refused too
	access    string   // the access token that came along; compared where the token has at_hash
}

// Why an ID token that is genuine is refused all the same.
var (
	errSubject  = errors.New("the ID token has no sub")
	errAudience = errors.New("the ID token is for another audience")
	errNonce    = errors.New("the ID token's nonce is not the one that was sent")
	errHash     = errors.New("the ID token belongs to another access token")
)

// verify reads and judges an ID token.
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

// repeated says whether a token's nonce is the one that was sent. Those of the named providers may have none: where
// that is so, PKCE ties the code to the browser's sign-in, or the provider knows no nonce at all. A custom provider
// has to keep to OpenID Connect Core 1.0, section 3.1.3.7, and Apple to its word: nonce_supported says that
// it would have repeated the nonce.
func (w want) repeated(nonce string, claims jsonObject) bool {
	if w.nonce == "" || nonce == w.nonce {
		return true
	}
	return nonce == "" && !w.demanded && !claims.isTrueOrText("nonce_supported")
}

// trust is the issuer of the provider's ID tokens. The zero trust accepts none.
func (p *Provider) trust() trust {
	if p.trusts != nil {
		return p.trusts(p)
	}
	if p.client.URL != "" { // the operator's base is the only issuer
		return trust{issuer: p.resolve(p.row.issuer)}
	}
	return trust{issuer: p.row.issuer, also: p.also}
}

// fromIDToken is the profile of a provider whose token answer holds an ID token.
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

// idData is what an ID token says of its subject.
func (p *Provider) idData(id *idToken) Profile {
	d := Profile{Subject: id.Subject, Data: map[string]any{}}
	d.set("iss", id.Issuer)
	p.claim(p, id, &d)
	return d
}

// fingerprint distinguishes one ID token from all others, without keeping any of it: by its id, or by what is signed.
// Not by the signature: from one by ECDSA anyone can derive a second valid one (r and n-s). Not by the nonce, which
// may be one for all sign-ins of an application.
func fingerprint(id *idToken) []byte {
	h := sha256.New()
	kind, part := "signed", id.Input()
	if id.ID != "" {
		kind, part = "jti", id.ID
	}
	fmt.Fprintf(h, "%d:%s%s:%s", len(id.Issuer), id.Issuer, kind, part)
	return h.Sum(nil)
}
