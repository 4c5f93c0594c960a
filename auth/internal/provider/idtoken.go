package provider

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"gatehouse/auth/internal/token"
)

// idToken is a verified ID token: its issuer has signed it, it has not expired, and it was issued for this client.
type idToken struct {
	*token.Foreign
	claims jsonObject
}

// want holds what an ID token's claims must match.
type want struct {
	audiences []string // aud must have one of them
	single    bool     // if there are several audiences, azp must be the configured client ID
	nonce     string   // "": not compared
	demanded  bool     // a token without a nonce is refused too
	access    string   // the access token in the same answer; compared if the token has at_hash
}

// The reasons why a token with a valid signature is refused.
var (
	errSubject  = errors.New("the ID token has no sub")
	errAudience = errors.New("the ID token is for another audience")
	errNonce    = errors.New("the ID token's nonce is not the one that was sent")
	errHash     = errors.New("the ID token belongs to another access token")
)

// verify parses an ID token, and checks that the issuer t has signed it and that its claims match w.
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

// repeated reports whether a token's nonce is the one that was sent to the provider. Tokens of built-in providers may
// have no nonce: PKCE binds the code to the browser's sign-in, or the provider does not support nonces. A nonce is
// required of custom providers (OpenID Connect Core 1.0, section 3.1.3.7), and of Apple if the claim nonce_supported is
// true.
func (w want) repeated(nonce string, claims jsonObject) bool {
	if w.nonce == "" || nonce == w.nonce {
		return true
	}
	return nonce == "" && !w.demanded && !claims.isTrueOrText("nonce_supported")
}

// trust returns the trust in the issuer of the provider's ID tokens.
func (p *Provider) trust() trust {
	if p.trusts != nil {
		return p.trusts(p)
	}
	if p.client.URL != "" { // the issuer below the operator's base URL is the only one
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

// fingerprint returns a hash that identifies an ID token: a hash of its jti or, without one, of the signed text. It
// does not include the signature, since anyone can derive a second valid ECDSA signature (r and n-s) from the first.
// Nor does it use the nonce, since an application may send the same nonce with all sign-ins.
func fingerprint(id *idToken) []byte {
	h := sha256.New()
	kind, part := "signed", id.Input()
	if id.ID != "" {
		kind, part = "jti", id.ID
	}
	fmt.Fprintf(h, "%d:%s%s:%s", len(id.Issuer), id.Issuer, kind, part)
	return h.Sum(nil)
}

// standard are the claims of OpenID Connect Core 1.0, section 5.1, that are stored in an identity's data under the same
// names.
var standard = strings.Fields(`name family_name given_name middle_name nickname preferred_username profile picture website
	gender birthdate zoneinfo locale updated_at`)

// standardClaims copies the standard claims of a token into a profile, and aud, iat and exp, which native tokens also
// give.
func standardClaims(_ *Provider, t *idToken, d *Profile) {
	for _, name := range append([]string{"aud", "iat", "exp"}, standard...) {
		d.set(name, t.claims.lookup(name))
	}
	d.set("full_name", t.claims.lookup("name"))
	d.set("avatar_url", t.claims.lookup("picture"))
	d.addEmail(t.claims.textAt("email"), t.claims.isTrue("email_verified"), true)
}

// protocol are claims about the token itself, and addresses, which are not stored as custom claims.
var protocol = strings.Fields(`iss sub aud exp iat nbf jti azp nonce auth_time acr amr at_hash c_hash s_hash sid typ
	email email_verified phone_number phone_number_verified`)

// customClaims stores the other claims of a custom provider's token, such as roles and groups, in custom_claims.
func customClaims(p *Provider, t *idToken, d *Profile) {
	standardClaims(p, t, d)
	for name, value := range t.claims {
		if !slices.Contains(protocol, name) && !slices.Contains(standard, name) {
			d.setCustom(name, value)
		}
	}
}

// customProfile returns the profile from the ID token of a custom provider. If the token has no address, it also calls
// the provider's profile endpoint.
func customProfile(ctx context.Context, s *signIn) (Profile, error) {
	d, err := fromIDToken(ctx, s)
	if err != nil || len(d.Emails) > 0 {
		return d, err
	}
	doc, err := s.issuers.document(ctx, s.trust())
	if err != nil || doc.userinfo == "" {
		return d, err
	}
	var more jsonObject
	if err := getJSON(ctx, doc.client(s.http), doc.userinfo,
		http.Header{"Authorization": {"Bearer " + s.token.AccessToken}}, &more); err != nil {
		return Profile{}, err
	}
	if more.textAt("sub") != d.Subject { // OpenID Connect Core 1.0, section 5.3.2
		return Profile{}, errors.New("the profile endpoint returns another subject")
	}
	told := Profile{Data: map[string]any{}}
	customClaims(s.Provider, &idToken{claims: more}, &told)
	d.Emails, d.BadEmail = told.Emails, told.BadEmail
	for name, value := range told.Data {
		if d.Data[name] == nil {
			d.Data[name] = value
		}
	}
	return d, nil
}
