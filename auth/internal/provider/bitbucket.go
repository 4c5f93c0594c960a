package provider

import "context"

func bitbucketMore(ctx context.Context, s *signIn, me object, d *Profile) error {
	d.set("picture avatar_url", me.text("avatar.href")) // where older versions of the API have it
	var list object
	if err := s.call(ctx, "/user/emails", "", &list); err != nil {
		return err
	}
	list.each("values", func(e object) {
		d.addEmail(e.text("email"), e.yes("is_confirmed"), e.yes("is_primary"))
	})
	return nil
}
