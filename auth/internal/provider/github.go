package provider

import "context"

// githubMore: the addresses. The one in the profile is whatever its owner shows to the public.
func githubMore(ctx context.Context, s *signIn, _ jsonObject, d *Profile) error {
	var list []jsonObject
	if err := s.call(ctx, "/user/emails", "", &list); err != nil {
		return err
	}
	for _, e := range list {
		d.addEmail(e.textAt("email"), e.isTrue("verified"), e.isTrue("primary"))
	}
	return nil
}
