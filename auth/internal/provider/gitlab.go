package provider

import "context"

// gitlabMore: the first address is confirmed when the account is; of the others nothing is known.
func gitlabMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("iss", s.base)
	var list []jsonObject
	if err := s.call(ctx, "/api/v4/user/emails", "", &list); err != nil {
		return err
	}
	for _, e := range list {
		d.addEmail(e.textAt("email"), false, false)
	}
	d.addEmail(me.textAt("email"), me.textAt("confirmed_at") != "", true)
	return nil
}
