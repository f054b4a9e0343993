from typing import Literal

from maniflex import Model, Server, field


class Post(Model):
    title: str = field(filterable=True, sortable=True)
    body: str
    status: Literal["draft", "published", "archived"] = field(default="draft", filterable=True)


server = Server(database="sqlite:///blog.db")
server.register(Post)

if __name__ == "__main__":
    server.run()
