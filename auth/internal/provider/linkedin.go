package provider

import (
	"context"
	"strings"
)

// linkedinProfile is the ID token's, or the profile endpoint's where an answer has none.
func linkedinProfile(ctx context.Context, s *signIn) (Profile, error) {
	if s.extra("id_token") == "" {
		return s.readProfile(ctx)
	}
	return fromIDToken(ctx, s)
}

// linkedinUserinfo: the profile endpoint's members are the claims of the ID token.
func linkedinUserinfo(_ context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("iss", s.trust().issuer)
	linkedinClaims(s.Provider, &idToken{claims: me}, d)
	return nil
}

// linkedinClaims: the flag of the address is text in these ID tokens.
func linkedinClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), t.claims.isTrueOrText("email_verified"), true)
	name := t.claims.textAt("name")
	if whole := strings.TrimSpace(t.claims.textAt("given_name") + " " + t.claims.textAt("family_name")); whole != "" {
		name = whole
	}
	d.set("name full_name", name)
	d.set("given_name", t.claims.lookup("given_name"))
	d.set("family_name", t.claims.lookup("family_name"))
	d.set("locale", t.claims.lookup("locale"))
	d.set("picture avatar_url", t.claims.lookup("picture"))
}

// linkedinMore is the legacy mode: names in the member's preferred language, the address in a call of its
// own. What is missing is empty.
func linkedinMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	local := func(name string) string {
		key := me.textAt(name+".preferredLocale.language") + "_" + me.textAt(name+".preferredLocale.country")
		texts, _ := me.lookup(name + ".localized").(map[string]any)
		text, _ := texts[key].(string)
		return text
	}
	d.set("name full_name", strings.TrimSpace(local("firstName")+" "+local("lastName")))
	d.set("picture avatar_url", me.textAt("profilePicture.displayImage~.elements.0.identifiers.0.identifier"))
	var list jsonObject
	if err := s.call(ctx, "/v2/emailAddress", "q=members&projection=(elements*(handle~))", &list); err != nil {
		return err
	}
	d.addEmail(list.textAt("elements.0.handle~.emailAddress"), true, true)
	return nil
}
