package provider

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// standard are the claims of OpenID Connect Core 1.0, section 5.1, that are stored in identities under the same names.
var standard = strings.Fields(`name family_name given_name middle_name nickname preferred_username profile picture website
	gender birthdate zoneinfo locale updated_at`)

// standardClaims copies the standard claims, and aud, iat and exp as for native tokens.
func standardClaims(_ *Provider, t *idToken, d *Profile) {
	for _, name := range append([]string{"aud", "iat", "exp"}, standard...) {
		d.set(name, t.claims.lookup(name))
	}
	d.set("full_name", t.claims.lookup("name"))
	d.set("avatar_url", t.claims.lookup("picture"))
	d.addEmail(t.claims.textAt("email"), t.claims.isTrue("email_verified"), true)
}

// protocol are claims about the token, not about its subject.
var protocol = strings.Fields(`iss sub aud exp iat nbf jti azp nonce auth_time acr amr at_hash c_hash s_hash sid typ
	email email_verified phone_number phone_number_verified`)

// customClaims stores further claims of a custom provider, such as roles and groups, in custom_claims.
func customClaims(p *Provider, t *idToken, d *Profile) {
	standardClaims(p, t, d)
	for name, value := range t.claims {
		if !slices.Contains(protocol, name) && !slices.Contains(standard, name) {
			d.setCustom(name, value)
		}
	}
}

// customProfile returns the profile from the ID token. If that has no address, it also queries the provider's profile
// endpoint.
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
