package provider

import (
	"context"
	"errors"
)

// slackMore: two members are named by addresses. Older applications' answers have no flag for the address;
// what such a workspace gives counts as proven in the legacy mode only. OpenID Connect names the user in
// sub as well, which does where the other name is missing.
func slackMore(_ context.Context, s *signIn, me object, d *Profile) error {
	if me.at("ok") == false {
		return errors.New("the profile call says that it is not ok")
	}
	const user, team = "https://slack.com/user_id", "https://slack.com/team_id"
	if d.Subject = text(me[user]); d.Subject == "" && s.mode != "legacy" {
		d.Subject = me.text("sub")
	}
	d.setCustom(team, me[team])
	verified := me.yes("email_verified")
	if s.mode == "legacy" && me.at("email_verified") == nil {
		verified = true
	}
	d.addEmail(me.text("email"), verified, true)
	return nil
}
