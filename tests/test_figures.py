"""What a notebook shows of a picture."""

from harmax.figures import Picture, new_figure


def test_a_notebook_shows_a_picture_with_its_caption() -> None:
    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1])
    picture = Picture(figure, 'Dots < "lines".')
    assert picture._repr_png_().startswith(b"\x89PNG")
    page = picture._repr_html_()
    assert 'src="data:image/png;base64,' in page
    assert page.endswith("<p>Dots &lt; &quot;lines&quot;.</p>")
