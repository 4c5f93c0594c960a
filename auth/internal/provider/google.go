package provider

import "context"

// googleProfile is the ID token's, or the profile call's where an answer has none.
func googleProfile(ctx context.Context, s *signIn) (Profile, error) {
	if s.extra("id_token") == "" {
		return s.readProfile(ctx)
	}
	return fromIDToken(ctx, s)
}

func googleClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), t.claims.isTrueOrText("email_verified"), true)
	d.set("name full_name", t.claims.lookup("name"))
	d.set("picture avatar_url", t.claims.lookup("picture"))
	d.setCustom("hd", t.claims.lookup("hd"))
}
